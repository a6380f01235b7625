"""T5X directories, and readers with options for `load(..., reader=...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.t5x.read import (
        T5XFormat,
        all_dataset_checkpoint_steps,
        all_steps,
        checkpoint_directory,
        dataset_prefix,
        find_checkpoint,
        latest_step,
    )
    from orbit_ckpt._src.formats.tf_checkpoint.names import (
        T5_RULES,
        CheckpointTranslator,
        translate_t5,
    )
    from orbit_ckpt._src.formats.tf_checkpoint.read import TensorFlowFormat, TFVariable

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
        "formats.t5x.read": (
            "all_dataset_checkpoint_steps, all_steps, checkpoint_directory, dataset_prefix, "
            "find_checkpoint, latest_step, T5XFormat"
        ),
        "formats.tf_checkpoint.read": "TensorFlowFormat, TFVariable",
        "formats.tf_checkpoint.names": "CheckpointTranslator, T5_RULES, translate_t5",
    },
)
