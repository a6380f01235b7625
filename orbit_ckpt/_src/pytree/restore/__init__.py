"""Resolve and run the restore of one tree."""
