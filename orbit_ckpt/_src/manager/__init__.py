"""A run of checkpoints: its steps, which to keep, following it."""
