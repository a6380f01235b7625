"""Helpers of Orbax's `utils`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.arrays.sharding import fully_replicated_host_local_array_to_global_array
    from orbit_ckpt._src.checkpointer.telemetry import record_saved_duration
    from orbit_ckpt._src.checkpointer.unfinished import all_temporary_paths as tmp_checkpoints
    from orbit_ckpt._src.checkpointer.unfinished import is_path_temporary as is_tmp_checkpoint
    from orbit_ckpt._src.formats.orbax.placeholders import (
        all_leaves_are_placeholders,
        leaf_is_placeholder,
        leaf_placeholder,
        name_from_leaf_placeholder,
        pytree_structure,
    )
    from orbit_ckpt._src.manager.step_paths import (
        any_checkpoint_step,
        checkpoint_steps,
        checkpoint_steps_paths,
        get_save_directory,
        step_from_checkpoint_name,
    )
    from orbit_ckpt._src.manager.step_paths import is_path_finalized as is_checkpoint_finalized
    from orbit_ckpt._src.pytree.restore.abstract import is_scalar, to_shape_dtype_struct
    from orbit_ckpt._src.runtime.multihost import (
        broadcast_one_to_all,
        is_pathways_backend,
        is_primary_host,
        reached_preemption,
        sync_global_processes,
    )
    from orbit_ckpt._src.runtime.multihost import sync_global_processes as sync_global_devices
    from orbit_ckpt._src.storage.layout import TEMPORARY_SUFFIX as TMP_DIR_SUFFIX
    from orbit_ckpt._src.storage.path import is_gcs_path
    from orbit_ckpt._src.tree.flat_dict import (
        PyTree,
        deserialize_tree,
        from_flat_dict,
        from_flattened_with_keypath,
        get_key_name,
        is_dict_key,
        is_empty_or_leaf,
        serialize_tree,
        to_flat_dict,
    )
    from orbit_ckpt._src.tree.flat_dict import str_keypath as tuple_path_from_keypath
    from orbit_ckpt._src.tree.flatten import is_empty_node
    from orbit_ckpt._src.tree.keypath import is_sequence_key

__all__ = [
    "TMP_DIR_SUFFIX",
    "PyTree",
    "all_leaves_are_placeholders",
    "any_checkpoint_step",
    "broadcast_one_to_all",
    "checkpoint_steps",
    "checkpoint_steps_paths",
    "deserialize_tree",
    "from_flat_dict",
    "from_flattened_with_keypath",
    "fully_replicated_host_local_array_to_global_array",
    "get_key_name",
    "get_save_directory",
    "is_checkpoint_finalized",
    "is_dict_key",
    "is_empty_node",
    "is_empty_or_leaf",
    "is_gcs_path",
    "is_pathways_backend",
    "is_primary_host",
    "is_scalar",
    "is_sequence_key",
    "is_tmp_checkpoint",
    "leaf_is_placeholder",
    "leaf_placeholder",
    "name_from_leaf_placeholder",
    "pytree_structure",
    "reached_preemption",
    "record_saved_duration",
    "serialize_tree",
    "step_from_checkpoint_name",
    "sync_global_devices",
    "sync_global_processes",
    "tmp_checkpoints",
    "to_flat_dict",
    "to_shape_dtype_struct",
    "tuple_path_from_keypath",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "arrays.sharding": "fully_replicated_host_local_array_to_global_array",
        "checkpointer.telemetry": "record_saved_duration",
        "checkpointer.unfinished": (
            "is_path_temporary as is_tmp_checkpoint, all_temporary_paths as tmp_checkpoints"
        ),
        "formats.orbax.placeholders": (
            "all_leaves_are_placeholders, leaf_is_placeholder, leaf_placeholder, "
            "name_from_leaf_placeholder, pytree_structure"
        ),
        "manager.step_paths": (
            "any_checkpoint_step, checkpoint_steps, checkpoint_steps_paths, get_save_directory, "
            "is_path_finalized as is_checkpoint_finalized, step_from_checkpoint_name"
        ),
        "pytree.restore.abstract": "is_scalar, to_shape_dtype_struct",
        "runtime.multihost": (
            "broadcast_one_to_all, is_pathways_backend, is_primary_host, reached_preemption, "
            "sync_global_processes, sync_global_processes as sync_global_devices"
        ),
        "storage.layout": "TEMPORARY_SUFFIX as TMP_DIR_SUFFIX",
        "storage.path": "is_gcs_path",
        "tree.flat_dict": (
            "deserialize_tree, from_flat_dict, from_flattened_with_keypath, get_key_name, "
            "is_dict_key, is_empty_or_leaf, PyTree, serialize_tree, str_keypath as "
            "tuple_path_from_keypath, to_flat_dict"
        ),
        "tree.flatten": "is_empty_node",
        "tree.keypath": "is_sequence_key",
    },
)
