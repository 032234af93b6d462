"""Device families that compile and run candidates."""
