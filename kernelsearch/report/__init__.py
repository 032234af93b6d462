"""What people look at: a study as a page, as text, as tables and as figures."""
