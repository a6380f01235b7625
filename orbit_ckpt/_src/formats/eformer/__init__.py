"""Checkpoints of eFormer."""
