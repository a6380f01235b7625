"""Rename, merge, split and compute leaves on their way out of a checkpoint."""
