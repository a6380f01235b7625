"""Checkpoints of TensorFlow."""
