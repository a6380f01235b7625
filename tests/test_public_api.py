"""Every public name; adding or removing one is a deliberate edit of this file."""

from __future__ import annotations

import ast
import importlib
import re
import typing
from pathlib import Path
from types import ModuleType

import pytest

import orbit_ckpt

POLICIES = {
    *("SaveDecisionPolicy", "DecisionContext", "SaveDecision", "decide"),
    *("FixedIntervalPolicy", "SpecificStepsPolicy", "IntervalsPolicy", "CheckpointInterval"),
    *("TimeIntervalPolicy", "ContinuousCheckpointingPolicy", "BoundedOverheadPolicy"),
    *("PreemptionCheckpointingPolicy", "InitialSavePolicy", "FunctionPolicy", "TemporaryPolicy"),
    *("AnySavePolicy", "AllSavePolicy", "find_policy"),
    *("PreservationPolicy", "PreservationContext", "RetentionRules", "RetentionPlan"),
    *("StepRetention", "StepInfo", "PolicyCheckpointInfo"),
    *("PreserveAll", "LatestN", "LatestDuration", "EveryNSeconds", "EveryNSteps"),
    *("EveryNStepsClosest", "CustomSteps", "BestN", "SaveBest", "Pinned"),
    *("LatestTemporary", "AmongPermanent"),
    *("AnyPreservationPolicy", "AllPreservationPolicy", "InTurn"),
}

STEP = {
    *("standard_name_format", "build_step_path", "find_step_path"),
    *("latest_step_metadata", "checkpoint_steps", "is_path_finalized"),
    *("NameFormat", "StepNameFormat", "CompositeNameFormat", "composite_name_format"),
    *("Metadata", "StepRecord", "TMP_DIR_SUFFIX", "is_standard_name_format"),
    *("single_host_load_and_broadcast_name_format", "all_temporary_paths", "tmp_checkpoints"),
    *("is_path_temporary", "is_tmp_checkpoint", "is_checkpoint_finalized"),
    *("any_checkpoint_step", "build_step_metadatas", "checkpoint_steps_paths"),
    *("get_save_directory", "maybe_find_step_metadata", "step_from_checkpoint_name"),
    *("step_metadata_of_checkpoint_path", "step_prefix_with_underscore"),
}

REPLICATOR = {"ReplicatorCheckpointManager", "ReplicatorCheckpointManagerOptions"}

PUBLIC = {
    "orbit_ckpt": {
        *("save", "save_async", "SaveHandle", "load", "plan", "LazyArray", "metadata"),
        *("RestorePlan", "LeafPlan", "CheckpointDiff", "convert", "diff", "VerifyReport", "verify"),
        *("copy", "rechunk", "statistics"),
        *("detect_format", "latest_step"),
        *("detect_format", "install_as_orbax"),
        *("Checkpointer", "PyTreeCheckpointer", "AsyncCheckpointer", "StandardCheckpointer"),
        *("CheckpointHandler", "AsyncCheckpointHandler"),
        *("PyTreeHandler", "PyTreeCheckpointHandler"),
        *("StandardHandler", "StandardCheckpointHandler"),
        *("ArrayCheckpointHandler", "JsonHandler", "JsonCheckpointHandler"),
        *("JaxRandomKeyHandler", "JaxRandomKeyCheckpointHandler"),
        *("NumpyRandomKeyHandler", "NumpyRandomKeyCheckpointHandler"),
        *("ProtoHandler", "ProtoCheckpointHandler", "StatefulHandler"),
        *("CompositeHandler", "CompositeCheckpointHandler", "DefaultCheckpointHandlerRegistry"),
        *("SaveArgs", "RestoreArgs", "ArrayRestoreArgs", "ParamInfo", "PLACEHOLDER"),
        *(
            "AsyncOptions",
            "AtomicityMode",
            "AtomicityOptions",
            "FileOptions",
            "MemoryOptions",
            "MultiprocessingOptions",
            "PyTreeMetadataOptions",
        ),
        *("CheckpointManager", "CheckpointManagerOptions", "StepNameFormat"),
        "TensorBoardMetrics",
        *("args", "checkpoint_managers", "checkpoint_utils", "errors", "formats", "handlers"),
        *("future", "policies", "reports"),
        *("abstract_checkpoint_manager", "checkpoint_manager"),
        *("aggregate_handlers", "experimental", "pathways"),
        *("checkpoint_args", "checkpointers", "logging", "options", "path"),
        *("AbstractCheckpointer", "AbstractCheckpointManager", "BasePyTreeCheckpointHandler"),
        *("CheckpointHandlerRegistry", "CompositeOptions", "Future"),
        *("arrays", "msgpack_utils", "multihost", "serialization", "test_utils", "tree"),
        *("step", "stores", "t5x", "transform", "transform_utils", "type_handlers", "utils"),
        *("arrays", "multihost", "test_utils", "tree"),
        *("step", "stores", "t5x", "transform", "transform_utils", "type_handlers", "utils", "v1"),
        *("Transform", "RestoreTransform", "apply_transformations", "merge_trees"),
    },
    "orbit_ckpt.as_orbax": set(),
    "orbit_ckpt.cli": {"main", "write_report"},
    "orbit_ckpt.formats": {
        *("Format", "LinkedFiles", "StepRecognizer", "WholeReader"),
        *("WritableFormat", "WriteRequest", "register_format"),
        *("stored_tree", "ForeignArray", "RawArray", "DecodedArray", "Extent"),
        *("ArrayStream", "array_stream", "new_file", "new_directory", "named_arrays"),
        "unsupported_leaves",
        *("ForeignStep", "StoredTree", "TreeParts", "detect_format"),
    },
    "orbit_ckpt.metadata": {
        *("ArrayMetadata", "Metadata", "ScalarMetadata", "StepMetadata", "StorageMetadata"),
        *("StringMetadata", "TreeMetadata"),
        *("NamedShardingMetadata", "SingleDeviceShardingMetadata", "ShardingMetadata"),
        *("RootMetadata", "MetadataStore", "metadata_store", "get_step_metadata"),
        *("tree", "value"),
    },
    "orbit_ckpt.metadata.tree": {"TreeMetadata"},
    "orbit_ckpt.metadata.value": {
        *("ArrayMetadata", "Metadata", "ScalarMetadata", "StorageMetadata", "StringMetadata"),
    },
    "orbit_ckpt.reports": {
        *("RestorePlan", "LeafPlan", "CheckpointDiff", "LeafChange", "UnmatchedLeaf"),
        "ArrayStatistics",
        *("ValueChange", "VerifyReport", "Damage", "Unchecked", "Unverifiable"),
    },
    "orbit_ckpt.policies": POLICIES,
    "orbit_ckpt.transform": {
        *("AssignmentMap", "Cast", "Combine", "Copy", "Drop", "Fallback", "KeyData", "Map"),
        *("Rename", "Rule", "Split", "Stack", "Transpose", "Unstack", "WrapKeys"),
        *("StateTransform", "from_t5x", "parse_rules", "partition", "ExpectedMesh"),
    },
    "orbit_ckpt.t5x": {
        *("T5XFormat", "all_steps", "all_dataset_checkpoint_steps", "latest_step"),
        *("checkpoint_directory", "dataset_prefix", "find_checkpoint"),
        *("TensorFlowFormat", "TFVariable", "CheckpointTranslator", "T5_RULES", "translate_t5"),
    },
    "orbit_ckpt.checkpoint_managers": POLICIES
    | {"preservation_policy", "save_decision_policy"}
    | {"AbstractCheckpointManager", "CheckpointManager", "CheckpointManagerOptions"},
    "orbit_ckpt.aggregate_handlers": {"AggregateHandler", "MsgpackHandler"},
    "orbit_ckpt.pathways": {"CheckpointingImpl", "register_type_handlers"},
    "orbit_ckpt.experimental.emergency": {
        *("checkpoint_manager", "multi_tier_checkpointing", "p2p"),
        "replicator_checkpoint_manager",
    },
    "orbit_ckpt.experimental.emergency.checkpoint_manager": {
        *("CheckpointManager", "CheckpointManagerOptions", "LocalCheckpointOptions"),
        *("MultiprocessingOptions", "PersistentCheckpointOptions"),
    },
    "orbit_ckpt.experimental.emergency.replicator_checkpoint_manager": REPLICATOR,
    "orbit_ckpt.experimental.emergency.multi_tier_checkpointing": {
        *("initialization", "replicator_checkpoint_manager"),
    },
    "orbit_ckpt.experimental.emergency.multi_tier_checkpointing.initialization": {
        "initialize_multi_tier_checkpointing",
    },
    "orbit_ckpt.experimental.emergency.multi_tier_checkpointing.replicator_checkpoint_manager": (
        REPLICATOR
    ),
    "orbit_ckpt.experimental.emergency.p2p": {"checkpoint_manager", "options"},
    "orbit_ckpt.experimental.emergency.p2p.checkpoint_manager": {"CheckpointManager"},
    "orbit_ckpt.experimental.emergency.p2p.options": {
        *("CheckpointManagerOptions", "LocalCheckpointOptions", "PersistentCheckpointOptions"),
    },
    "orbit_ckpt.abstract_checkpoint_manager": {"AbstractCheckpointManager"},
    "orbit_ckpt.checkpoint_manager": {
        *("CheckpointManager", "CheckpointManagerOptions", "AbstractCheckpointManager"),
        *("AbstractCheckpointer", "AsyncCheckpointer", "Checkpointer", "is_async_checkpointer"),
        *("AsyncOptions", "FileOptions", "MultiprocessingOptions", "StepAlreadyExistsError"),
        *("CheckpointArgs", "CheckpointHandler", "CheckpointHandlerRegistry", "CheckpointInfo"),
        *("CompositeCheckpointHandler", "JsonCheckpointHandler", "ProtoCheckpointHandler"),
        *("DEFAULT_ITEM_NAME", "METADATA_ITEM_NAME", "METRIC_ITEM_NAME", "RESERVED_ITEM_NAMES"),
        *("RootMetadata", "StepMetadata"),
    },
    "orbit_ckpt.args": {
        *("CheckpointArgs", "register_with_handler"),
        *("get_registered_args_cls", "get_registered_handler_cls", "has_registered_args"),
        *("BasePyTreeSave", "BasePyTreeRestore"),
        *("PyTreeSave", "PyTreeRestore", "StandardSave", "StandardRestore"),
        *("ArraySave", "ArrayRestore", "JsonSave", "JsonRestore", "Composite"),
        *("ProtoSave", "ProtoRestore", "StatefulSave", "StatefulRestore"),
        *("JaxRandomKeySave", "JaxRandomKeyRestore"),
        *("NumpyRandomKeySave", "NumpyRandomKeyRestore"),
    },
    "orbit_ckpt.type_handlers": {
        "ArrayHandler",
        "ArrayRead",
        "ArrayRestoreArgs",
        "ArraySnapshot",
        "ArrayStorage",
        "Future",
        "GLOBAL_TYPE_HANDLER_REGISTRY",
        "LazyComposer",
        "LazyReader",
        "LeafNode",
        "NumpyHandler",
        "OpenArray",
        "ParamInfo",
        "ReadPlanner",
        "RestoreArgs",
        "SaveArgs",
        "ScalarHandler",
        "SerializationStatusCallback",
        "SingleReplicaArrayHandler",
        "SingleReplicaArrayRestoreArgs",
        "SnapshotHandler",
        "StringHandler",
        "TextStorage",
        "TransferPriority",
        "TypeHandler",
        "TypeHandlerRegistry",
        "ValueChecker",
        "check_input_arguments",
        "create_type_handler_registry",
        "get_cast_tspec_deserialize",
        "get_cast_tspec_serialize",
        "get_json_tspec_read",
        "get_json_tspec_write",
        "get_ts_context",
        "get_type_handler",
        "has_type_handler",
        "is_ocdbt_checkpoint",
        "is_supported_empty_value",
        "is_supported_type",
        "merge_ocdbt_per_process_files",
        "register_standard_handlers_with_options",
        "register_type_handler",
        "supported_types",
    },
    "orbit_ckpt.checkpoint_args": {
        *("CheckpointArgs", "register_with_handler"),
        *("get_registered_args_cls", "get_registered_handler_cls", "has_registered_args"),
    },
    "orbit_ckpt.checkpointers": {
        *("AbstractCheckpointer", "AsyncCheckpointer", "Checkpointer", "PyTreeCheckpointer"),
        "StandardCheckpointer",
    },
    "orbit_ckpt.future": {
        *("Future", "NoopFuture", "ChainedFuture", "CommitFutureAwaitingContractedSignals"),
    },
    "orbit_ckpt.handlers": {
        *("ArraySaveArgs", "ArrayRestoreArgs", "CompositeArgs", "CompositeResults"),
        *("JsonSaveArgs", "JsonRestoreArgs", "ProtoSaveArgs", "ProtoRestoreArgs"),
        *("PyTreeSaveArgs", "PyTreeRestoreArgs", "StandardSaveArgs", "StandardRestoreArgs"),
        *("JaxRandomKeySaveArgs", "JaxRandomKeyRestoreArgs", "NumpyRandomKeySaveArgs"),
        *("NumpyRandomKeyRestoreArgs", "StatefulSaveArgs", "StatefulRestoreArgs"),
        *("BasePyTreeCheckpointHandler", "BasePyTreeSaveArgs", "BasePyTreeRestoreArgs"),
        *("CheckpointHandlerRegistry", "create_default_handler_registry", "CompositeOptions"),
        "handler_registration",
        "ArrayCheckpointHandler",
        "AsyncCheckpointHandler",
        "CheckpointHandler",
        "Commit",
        "CompositeCheckpointHandler",
        "CompositeHandler",
        "DefaultCheckpointHandlerRegistry",
        "JaxRandomKeyCheckpointHandler",
        "JaxRandomKeyHandler",
        "JsonCheckpointHandler",
        "JsonHandler",
        "NumpyRandomKeyCheckpointHandler",
        "NumpyRandomKeyHandler",
        "ProtoCheckpointHandler",
        "ProtoHandler",
        "PyTreeCheckpointHandler",
        "PyTreeHandler",
        "StagingHandler",
        "StandardCheckpointHandler",
        "StandardHandler",
        "StatefulHandler",
    },
    "orbit_ckpt.logging": {
        *("AbstractLogger", "CompositeLogger", "StandardLogger", "step_statistics"),
        *("MlflowLogger", "TensorBoardLogger", "WandbLogger"),
    },
    "orbit_ckpt.logging.step_statistics": {
        *("CommitStepStatistics", "RestoreStepStatistics", "SaveStepStatistics"),
    },
    "orbit_ckpt.options": {
        *("AsyncOptions", "AtomicityMode", "AtomicityOptions", "FileOptions"),
        *("MemoryLimitOptions", "MemoryOptions", "MultiprocessingOptions"),
    },
    "orbit_ckpt.stores": {"ObjectClient", "register_store"},
    "orbit_ckpt.checkpoint_utils": {
        *("construct_restore_args", "checkpoints_iterator", "wait_for_new_checkpoint"),
        *("find_latest_checkpoint", "get_snapshot_dir_from_step_dir"),
        "PLACEHOLDER",
        "STANDARD_ARRAY_TYPES",
        "checkpoints_iterator",
        "construct_restore_args",
        "find_latest_checkpoint",
        "wait_for_new_checkpoint",
    },
    "orbit_ckpt.step": STEP,
    "orbit_ckpt.path": {
        *("atomicity", "atomicity_defaults", "atomicity_types", "deleter", "format_utils", "step"),
    },
    "orbit_ckpt.path.step": STEP,
    "orbit_ckpt.path.atomicity": {
        *("AtomicRenameTemporaryPath", "CommitFileTemporaryPath", "ReadOnlyTemporaryPath"),
        *("TemporaryPath", "ValidationError", "COMMIT_SUCCESS_FILE", "TMP_DIR_SUFFIX"),
    },
    "orbit_ckpt.path.atomicity_types": {
        *("TemporaryPath", "ValidationError", "COMMIT_SUCCESS_FILE", "TMP_DIR_SUFFIX"),
    },
    "orbit_ckpt.path.atomicity_defaults": {"get_default_temporary_path_class"},
    "orbit_ckpt.path.deleter": {"CheckpointDeleter", "create_checkpoint_deleter"},
    "orbit_ckpt.path.format_utils": {"is_ocdbt_checkpoint", "is_orbax_checkpoint"},
    "orbit_ckpt.transform_utils": {
        *("Transform", "RestoreTransform", "apply_transformations"),
        *("merge_trees", "intersect_trees"),
    },
    "orbit_ckpt.tree": {
        *("JsonType", "PyTree", "PyTreeKey", "PyTreeOf", "PyTreePath"),
        *("serialize_tree", "deserialize_tree"),
        *("to_flat_dict", "from_flat_dict", "is_flat_dict", "get_param_names", "str_keypath"),
        *("merge_trees", "tree_difference", "tree_trim", "to_shape_dtype_struct"),
    },
    "orbit_ckpt.arrays": {
        *("Index", "Shape", "construct_maximal_shardings", "to_shape_dtype_struct"),
    },
    "orbit_ckpt.utils": {
        "PyTree",
        "TMP_DIR_SUFFIX",
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
    },
    "orbit_ckpt.multihost": {
        "BarrierSyncFn",
        "broadcast_one_to_all",
        "coordination_timeout",
        "get_barrier_sync_fn",
        "get_jax_distributed_client",
        "global_max",
        "initialize_runtime_to_distributed_ids",
        "is_cloud_pathways_persistence_enabled",
        "is_jax_distributed_client_initialized",
        "is_native_pathways_backend",
        "is_pathways_backend",
        "is_primary_host",
        "is_proxy_pathways_backend",
        "is_runtime_to_distributed_ids_initialized",
        "process_count",
        "process_index",
        "process_index_from_device",
        "reached_preemption",
        "should_skip_process_sync",
        "sync_global_processes",
        "unique_barrier_key",
        "unique_processes_from_devices",
    },
    "orbit_ckpt.test_utils": {
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
    },
    "orbit_ckpt.serialization": {
        "async_deserialize",
        "async_serialize",
        "get_ts_context",
        "tensorstore_utils",
        "ts_utils",
    },
    "orbit_ckpt.msgpack_utils": {
        "MAX_CHUNK_SIZE",
        "msgpack_restore",
        "msgpack_serialize",
    },
    "orbit_ckpt.testing": {
        *("TypeHandlerContract", "ItemHandlerContract", "SeveralProcessesContract"),
        *("FormatContract", "WritableFormatContract", "StoreContract"),
        "ObjectClientContract",
        *("PolicyContract", "SavePolicyContract", "PreservationPolicyContract"),
        *("PromiseBrokenError", "promised", "expect", "expect_same", "is_same"),
        *("fake_processes", "sample_histories", "spoil"),
    },
    "orbit_ckpt.errors": {
        *("CheckpointError", "CheckpointNotFoundError", "CheckpointExistsError"),
        *("IncompleteCheckpointError", "FormatError", "CorruptionError", "StorageError"),
        *("VersionError", "UnsafePathError"),
        *("ItemNotFoundError", "StepAlreadyExistsError", "StepNotFoundError"),
        *("BackgroundSaveError", "ItemError", "ProcessCountError", "MissingPackageError"),
        "WorkerLostError",
        "AlreadyImportedError",
        *("ProcessFailedError", "ProcessTimeoutError"),
        *("LeafError", "UnsupportedLeafError", "NameCollisionError", "TreeMismatchError"),
        *("TransformError", "PluginConflictError"),
        "NotSupportedError",
    },
    "orbit_ckpt.v1": {
        "AbstractCheckpointable",
        "AsyncResponse",
        "CheckpointMetadata",
        "Checkpointable",
        "CheckpointableHandler",
        "Context",
        "PLACEHOLDER",
        "PyTreeMetadata",
        "StatefulCheckpointable",
        "arrays",
        "checkpointables_metadata",
        "delete",
        "delete_async",
        "errors",
        "handlers",
        "is_orbax_checkpoint",
        "load",
        "load_async",
        "load_checkpointables",
        "load_checkpointables_async",
        "load_pytree",
        "load_pytree_async",
        "metadata",
        "multihost",
        "options",
        "partial",
        "path",
        "pytree_metadata",
        "save",
        "save_async",
        "save_checkpointables",
        "save_checkpointables_async",
        "save_pytree",
        "save_pytree_async",
        "training",
        "tree",
    },
    "orbit_ckpt.v1.arrays": {
        "AbstractArray",
        "AbstractScalar",
        "AbstractShardedArray",
        "ArrayLike",
        "DType",
        "Scalar",
        "Shape",
        "to_shape_dtype_struct",
    },
    "orbit_ckpt.v1.errors": {
        "DeletionInProgressError",
        "DeletionRecoveryError",
        "InvalidLayoutError",
    },
    "orbit_ckpt.v1.handlers": {
        "AbstractCheckpointable",
        "Checkpointable",
        "CheckpointableHandler",
        "CheckpointableHandlerRegistry",
        "JsonHandler",
        "ProtoHandler",
        "PyTreeHandler",
        "StatefulCheckpointable",
        "global_registry",
        "local_registry",
        "register_handler",
    },
    "orbit_ckpt.v1.multihost": {
        "is_pathways_backend",
        "is_primary_host",
        "process_count",
        "process_index",
        "sync_global_processes",
    },
    "orbit_ckpt.v1.options": {
        "ArrayOptions",
        "AsyncOptions",
        "AtomicityMode",
        "AtomicityOptions",
        "CheckpointLayout",
        "CheckpointablesOptions",
        "DeletionOptions",
        "FileOptions",
        "MemoryOptions",
        "MultiprocessingOptions",
        "PathwaysOptions",
        "PyTreeOptions",
        "SafetensorsOptions",
    },
    "orbit_ckpt.v1.partial": {"finalize", "save", "save_async"},
    "orbit_ckpt.v1.path": {"Path", "PathAwaitingCreation", "PathLike", "step"},
    "orbit_ckpt.v1.path.step": {"NameFormat", "composite_name_format", "standard_name_format"},
    "orbit_ckpt.v1.training": {
        "CheckpointMetadata",
        "Checkpointer",
        "RootMetadata",
        "errors",
        "pathways",
        "preservation_policies",
        "save_decision_policies",
    },
    "orbit_ckpt.v1.training.errors": {"StepAlreadyExistsError", "StepNotFoundError"},
    "orbit_ckpt.v1.training.pathways": set(),
    "orbit_ckpt.v1.training.preservation_policies": {
        "AnyPreservationPolicy",
        "BestN",
        "CustomSteps",
        "EveryNSeconds",
        "EveryNSteps",
        "EveryNStepsClosest",
        "LatestDuration",
        "LatestN",
        "PreservationContext",
        "PreservationPolicy",
        "PreserveAll",
    },
    "orbit_ckpt.v1.training.save_decision_policies": {
        "AnySavePolicy",
        "ContinuousCheckpointingPolicy",
        "DecisionContext",
        "FixedIntervalPolicy",
        "InitialSavePolicy",
        "PreemptionCheckpointingPolicy",
        "SaveDecisionPolicy",
        "SpecificStepsPolicy",
    },
    "orbit_ckpt.v1.tree": {
        "AbstractLeaf",
        "JsonType",
        "Leaf",
        "PyTree",
        "PyTreeKey",
        "PyTreeKeyPath",
        "PyTreeOf",
        "merge",
    },
    "orbit_ckpt.experimental": {"emergency", "v1"},
}
PUBLIC["orbit_ckpt.experimental.v1"] = PUBLIC["orbit_ckpt.v1"]

BASES = {
    "CheckpointNotFoundError": {FileNotFoundError},
    "NotSupportedError": {NotImplementedError},
    "StepNotFoundError": {FileNotFoundError, ValueError},
    "CheckpointExistsError": {FileExistsError, ValueError},
    "IncompleteCheckpointError": {ValueError},
    "FormatError": {ValueError},
    "CorruptionError": {ValueError},
    "StorageError": {OSError},
    "UnsafePathError": {ValueError},
    "PluginConflictError": {RuntimeError},
    "ItemError": {RuntimeError},
    "WorkerLostError": {RuntimeError},
    "ProcessCountError": {ValueError},
    "ProcessFailedError": {RuntimeError},
    "ProcessTimeoutError": {TimeoutError},
    "MissingPackageError": {ImportError},
    "AlreadyImportedError": {ImportError},
    "TransformError": {ValueError},
    "UnsupportedLeafError": {ValueError},
    "NameCollisionError": {ValueError},
    "TreeMismatchError": {ValueError},
}


def names_of(module: ModuleType) -> set[str]:
    """Return the public names of a module; without `__all__` those that it defines itself."""
    defined = {
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
    }
    return set(getattr(module, "__all__", defined))


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_these(name: str) -> None:
    module = importlib.import_module(name)
    assert names_of(module) == PUBLIC[name]
    assert all(hasattr(module, public) for public in PUBLIC[name])


@pytest.mark.parametrize(
    "name", sorted(PUBLIC.keys() - {"orbit_ckpt.testing", "orbit_ckpt.v1.training.pathways"})
)
def test_what_a_type_checker_sees_is_what_a_program_gets(name: str) -> None:
    module = importlib.import_module(name)
    tree = ast.parse(Path(module.__file__ or "").read_text())
    lazy = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in lazy.body if isinstance(node, ast.ImportFrom)]
    seen: dict[str, object] = {}
    for node in imports:
        source = importlib.import_module(node.module or "")
        for imported in node.names:
            names = source.__all__ if imported.name == "*" else [imported.name]
            seen |= {imported.asname or name: getattr(source, name) for name in names}
    lazily = {public: getattr(module, public) for public in PUBLIC[name] & seen.keys()}
    assert lazily == {public: seen[public] for public in lazily}
    assert PUBLIC[name] - seen.keys() <= {"main", "metadata"}


def test_public_modules_are_those_in_the_folder() -> None:
    folder = Path(orbit_ckpt.__file__).parent
    files = [path.relative_to(folder.parent) for path in folder.rglob("*.py")]
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files}
    hidden = re.compile(r"orbit_ckpt\.(_src|testing\..+)")
    assert {name for name in names if not hidden.match(name)} == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    values = [getattr(module, public) for public in PUBLIC[name]]
    # no alias of types can have a docstring
    values = [value for value in values if typing.get_origin(value) is None]
    undocumented = [v for v in values if (isinstance(v, type) or callable(v)) and not v.__doc__]
    assert not undocumented


@pytest.mark.parametrize("name", BASES)
def test_error_is_also_the_built_in_one_that_people_catch(name: str) -> None:
    error = getattr(orbit_ckpt.errors, name)
    built_in = {base for base in error.__mro__[1:] if base.__module__ == "builtins"}
    assert issubclass(error, orbit_ckpt.errors.CheckpointError)
    assert built_in >= BASES[name]


def test_orbax_names_are_the_same_classes() -> None:
    assert orbit_ckpt.PyTreeCheckpointHandler is orbit_ckpt.PyTreeHandler
    assert orbit_ckpt.StandardCheckpointHandler is orbit_ckpt.StandardHandler
    assert orbit_ckpt.type_handlers.SaveArgs is orbit_ckpt.SaveArgs
