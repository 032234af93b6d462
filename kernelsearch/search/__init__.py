"""How parents are chosen."""
