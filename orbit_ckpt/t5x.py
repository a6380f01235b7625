"""Checkpoints of T5X: its directories, and readers with options for `load(..., reader=...)`."""

from orbit_ckpt.formats.t5x import (
    T5XFormat,
    all_dataset_checkpoint_steps,
    all_steps,
    checkpoint_directory,
    dataset_prefix,
    find_checkpoint,
    latest_step,
)
from orbit_ckpt.formats.tf_checkpoint import TensorFlowFormat, TFVariable
from orbit_ckpt.formats.tf_names import T5_RULES, CheckpointTranslator, translate_t5

__all__ = [
    "T5_RULES",
    "CheckpointTranslator",
    "T5XFormat",
    "TFVariable",
    "TensorFlowFormat",
    "all_dataset_checkpoint_steps",
    "all_steps",
    "checkpoint_directory",
    "dataset_prefix",
    "find_checkpoint",
    "latest_step",
    "translate_t5",
]
