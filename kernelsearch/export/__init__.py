"""What is written for a build."""
