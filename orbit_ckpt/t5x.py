"""T5X directories, and readers with options for `load(..., reader=...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.t5x import (
        T5XFormat,
        all_dataset_checkpoint_steps,
        all_steps,
        checkpoint_directory,
        dataset_prefix,
        find_checkpoint,
        latest_step,
    )
    from orbit_ckpt._src.formats.tf_checkpoint import TensorFlowFormat, TFVariable
    from orbit_ckpt._src.formats.tf_names import T5_RULES, CheckpointTranslator, translate_t5

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

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "formats.t5x": (
            "all_dataset_checkpoint_steps, all_steps, checkpoint_directory, dataset_prefix, "
            "find_checkpoint, latest_step, T5XFormat"
        ),
        "formats.tf_checkpoint": "TensorFlowFormat, TFVariable",
        "formats.tf_names": "CheckpointTranslator, T5_RULES, translate_t5",
    },
)
