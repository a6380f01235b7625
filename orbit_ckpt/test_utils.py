"""Helpers for tests, under the names of Orbax's `test_utils`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from orbit_ckpt.testing.orbax_saves import (
        ErrorCheckpointHandler,
        ErrorRestoreArgs,
        ErrorSaveArgs,
        PyTreeCheckpointHandler,
        barrier_compatible_test,
        concurrent_gb_test_setup,
        create_tmp_directory,
        empty_directory,
        erase_and_create_empty,
        get_composite_save_args,
        global_type_handler_registry_context,
        is_compression_used,
        ocdbt_checkpoint_context,
        print_directory,
        register_type_handler,
        save_fake_tmp_dir,
        set_tensorstore_driver_for_test,
        sync_global_processes,
    )
    from orbit_ckpt.testing.orbax_trees import (
        apply_function,
        assert_array_equal,
        assert_every_n_is_x_apart,
        assert_tree_equal,
        assert_tree_same_structure,
        create_sharded_array,
        create_single_replica_restore_args,
        filter_metadata_fields,
        is_leaf,
        replicate_sharded_array,
        setup_pytree,
        setup_sharded_pytree,
    )

__all__ = [
    "ErrorCheckpointHandler",
    "ErrorRestoreArgs",
    "ErrorSaveArgs",
    "PyTreeCheckpointHandler",
    "apply_function",
    "assert_array_equal",
    "assert_every_n_is_x_apart",
    "assert_tree_equal",
    "assert_tree_same_structure",
    "barrier_compatible_test",
    "concurrent_gb_test_setup",
    "create_sharded_array",
    "create_single_replica_restore_args",
    "create_tmp_directory",
    "empty_directory",
    "erase_and_create_empty",
    "filter_metadata_fields",
    "get_composite_save_args",
    "global_type_handler_registry_context",
    "is_compression_used",
    "is_leaf",
    "ocdbt_checkpoint_context",
    "print_directory",
    "register_type_handler",
    "replicate_sharded_array",
    "save_fake_tmp_dir",
    "set_tensorstore_driver_for_test",
    "setup_pytree",
    "setup_sharded_pytree",
    "sync_global_processes",
]

_NAMES = {
    "orbax_saves": (
        "barrier_compatible_test, concurrent_gb_test_setup, create_tmp_directory, "
        "empty_directory, erase_and_create_empty, ErrorCheckpointHandler, ErrorRestoreArgs, "
        "ErrorSaveArgs, get_composite_save_args, global_type_handler_registry_context, "
        "is_compression_used, ocdbt_checkpoint_context, print_directory, "
        "PyTreeCheckpointHandler, register_type_handler, save_fake_tmp_dir, "
        "set_tensorstore_driver_for_test, sync_global_processes"
    ),
    "orbax_trees": (
        "apply_function, assert_array_equal, assert_every_n_is_x_apart, assert_tree_equal, "
        "assert_tree_same_structure, create_sharded_array, "
        "create_single_replica_restore_args, filter_metadata_fields, is_leaf, "
        "replicate_sharded_array, setup_pytree, setup_sharded_pytree"
    ),
}

__getattr__ = lazy_getattr(
    globals(),
    {
        name: f"orbit_ckpt.testing.{module}:{name}"
        for module, names in _NAMES.items()
        for name in names.split(", ")
    },
)
