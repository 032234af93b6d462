"""Search strategies on recorded spaces: read recordings, replay searches on them, compare."""
