"""Checkpoints of T5X: its directories, and readers with options for `load(..., reader=...)`."""

from orbit_ckpt.formats.t5x import (
    T5XFormat,
    all_dataset_checkpoint_steps,
    all_steps,
    checkpoint_directory,
    find_checkpoint,
    latest_step,
)

__all__ = [
    "T5XFormat",
    "all_dataset_checkpoint_steps",
    "all_steps",
    "checkpoint_directory",
    "find_checkpoint",
    "latest_step",
]
