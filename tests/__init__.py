"""Tests of kernelsearch."""
