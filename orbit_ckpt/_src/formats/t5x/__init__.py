"""Checkpoints of T5X, version 3."""
