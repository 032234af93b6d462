"""Where new variants come from."""
