"""Import a user's CUDA file: its host code becomes a launch plan, its kernels a variant file."""
