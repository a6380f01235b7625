"""Names and paths of steps: the helpers of Orbax's `step`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.checkpointer.unfinished import (
        all_temporary_paths,
        is_path_temporary,
        tmp_checkpoints,
    )
    from orbit_ckpt._src.checkpointer.unfinished import is_path_temporary as is_tmp_checkpoint
    from orbit_ckpt._src.manager.step_names import (
        CompositeNameFormat,
        NameFormat,
        StepNameFormat,
        composite_name_format,
        is_standard_name_format,
        single_host_load_and_broadcast_name_format,
        standard_name_format,
    )
    from orbit_ckpt._src.manager.step_paths import (
        any_checkpoint_step,
        build_step_metadatas,
        build_step_path,
        checkpoint_steps,
        checkpoint_steps_paths,
        find_step_path,
        get_save_directory,
        is_path_finalized,
        latest_step_metadata,
        maybe_find_step_metadata,
        step_from_checkpoint_name,
        step_metadata_of_checkpoint_path,
        step_prefix_with_underscore,
    )
    from orbit_ckpt._src.manager.step_paths import is_path_finalized as is_checkpoint_finalized
    from orbit_ckpt._src.manager.steps import StepPath as Metadata
    from orbit_ckpt._src.manager.steps import StepRecord
    from orbit_ckpt._src.storage.layout import TEMPORARY_SUFFIX as TMP_DIR_SUFFIX

__all__ = [
    "TMP_DIR_SUFFIX",
    "CompositeNameFormat",
    "Metadata",
    "NameFormat",
    "StepNameFormat",
    "StepRecord",
    "all_temporary_paths",
    "any_checkpoint_step",
    "build_step_metadatas",
    "build_step_path",
    "checkpoint_steps",
    "checkpoint_steps_paths",
    "composite_name_format",
    "find_step_path",
    "get_save_directory",
    "is_checkpoint_finalized",
    "is_path_finalized",
    "is_path_temporary",
    "is_standard_name_format",
    "is_tmp_checkpoint",
    "latest_step_metadata",
    "maybe_find_step_metadata",
    "single_host_load_and_broadcast_name_format",
    "standard_name_format",
    "step_from_checkpoint_name",
    "step_metadata_of_checkpoint_path",
    "step_prefix_with_underscore",
    "tmp_checkpoints",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "checkpointer.unfinished": (
            "all_temporary_paths, is_path_temporary, tmp_checkpoints, is_path_temporary as "
            "is_tmp_checkpoint"
        ),
        "manager.step_names": (
            "CompositeNameFormat, NameFormat, StepNameFormat, composite_name_format, "
            "is_standard_name_format, single_host_load_and_broadcast_name_format, "
            "standard_name_format"
        ),
        "manager.step_paths": (
            "any_checkpoint_step, build_step_metadatas, build_step_path, checkpoint_steps, "
            "checkpoint_steps_paths, find_step_path, get_save_directory, is_path_finalized, "
            "latest_step_metadata, maybe_find_step_metadata, step_from_checkpoint_name, "
            "step_metadata_of_checkpoint_path, step_prefix_with_underscore, is_path_finalized as "
            "is_checkpoint_finalized"
        ),
        "manager.steps": "StepRecord, StepPath as Metadata",
        "storage.layout": "TEMPORARY_SUFFIX as TMP_DIR_SUFFIX",
    },
)
