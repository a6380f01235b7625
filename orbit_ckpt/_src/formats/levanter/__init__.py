"""Checkpoints of Levanter."""
