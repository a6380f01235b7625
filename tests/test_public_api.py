"""Every public name; adding or removing one is a deliberate edit of this file."""

from __future__ import annotations

import ast
import importlib
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

PUBLIC = {
    "orbit_ckpt": {
        *("save", "save_async", "SaveHandle", "load", "plan", "LazyArray", "metadata"),
        *("RestorePlan", "LeafPlan", "CheckpointDiff", "convert", "diff", "VerifyReport", "verify"),
        "detect_format",
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
        *("step", "stores", "t5x", "transform", "transform_utils", "type_handlers", "utils"),
        *("Transform", "RestoreTransform", "apply_transformations", "merge_trees"),
    },
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
    },
    "orbit_ckpt.reports": {
        *("RestorePlan", "LeafPlan", "CheckpointDiff", "LeafChange", "UnmatchedLeaf"),
        *("ValueChange", "VerifyReport", "Damage", "Unchecked", "Unverifiable"),
    },
    "orbit_ckpt.policies": POLICIES,
    "orbit_ckpt.transform": {
        *("AssignmentMap", "Cast", "Combine", "Copy", "Drop", "Fallback", "KeyData", "Map"),
        *("Rename", "Rule", "Split", "Stack", "Transpose", "Unstack", "WrapKeys"),
        *("StateTransform", "parse_rules", "partition"),
    },
    "orbit_ckpt.t5x": {
        *("T5XFormat", "all_steps", "all_dataset_checkpoint_steps", "latest_step"),
        *("checkpoint_directory", "dataset_prefix", "find_checkpoint"),
        *("TensorFlowFormat", "TFVariable", "CheckpointTranslator", "T5_RULES", "translate_t5"),
    },
    "orbit_ckpt.checkpoint_managers": POLICIES | {"preservation_policy", "save_decision_policy"},
    "orbit_ckpt.args": {
        *("CheckpointArgs", "register_with_handler"),
        *("PyTreeSave", "PyTreeRestore", "StandardSave", "StandardRestore"),
        *("ArraySave", "ArrayRestore", "JsonSave", "JsonRestore", "Composite"),
        *("ProtoSave", "ProtoRestore", "StatefulSave", "StatefulRestore"),
        *("JaxRandomKeySave", "JaxRandomKeyRestore"),
        *("NumpyRandomKeySave", "NumpyRandomKeyRestore"),
    },
    "orbit_ckpt.type_handlers": {
        *("TypeHandler", "ParamInfo", "SaveArgs", "RestoreArgs", "ArrayRestoreArgs"),
        *("ArrayHandler", "NumpyHandler", "ScalarHandler", "StringHandler"),
        *("SingleReplicaArrayHandler", "SingleReplicaArrayRestoreArgs"),
        *("TypeHandlerRegistry", "GLOBAL_TYPE_HANDLER_REGISTRY", "create_type_handler_registry"),
        *("register_type_handler", "get_type_handler", "has_type_handler", "supported_types"),
        *("ValueChecker", "SnapshotHandler", "ArraySnapshot", "ReadPlanner", "ArrayRead"),
        *("ArrayStorage", "TextStorage", "LazyReader", "LazyComposer", "OpenArray"),
        *("LeafNode", "Future"),
    },
    "orbit_ckpt.future": {
        *("Future", "NoopFuture", "ChainedFuture", "CommitFutureAwaitingContractedSignals"),
    },
    "orbit_ckpt.handlers": {
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
    "orbit_ckpt.stores": {"ObjectClient", "register_store"},
    "orbit_ckpt.checkpoint_utils": {
        *("construct_restore_args", "checkpoints_iterator", "wait_for_new_checkpoint"),
        "find_latest_checkpoint",
    },
    "orbit_ckpt.step": {
        *("standard_name_format", "build_step_path", "find_step_path"),
        *("latest_step_metadata", "checkpoint_steps", "is_path_finalized"),
    },
    "orbit_ckpt.transform_utils": {
        *("Transform", "RestoreTransform", "apply_transformations"),
        *("merge_trees", "intersect_trees"),
    },
    "orbit_ckpt.utils": {
        *("checkpoint_steps", "is_checkpoint_finalized", "to_shape_dtype_struct"),
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
        *("ProcessFailedError", "ProcessTimeoutError"),
        *("LeafError", "UnsupportedLeafError", "NameCollisionError", "TreeMismatchError"),
        *("TransformError", "PluginConflictError"),
    },
}
BASES = {
    "CheckpointNotFoundError": {FileNotFoundError},
    "CheckpointExistsError": {FileExistsError, ValueError},
    "IncompleteCheckpointError": {ValueError},
    "FormatError": {ValueError},
    "CorruptionError": {ValueError},
    "StorageError": {OSError},
    "UnsafePathError": {ValueError},
    "PluginConflictError": {RuntimeError},
    "ItemError": {RuntimeError},
    "ProcessCountError": {ValueError},
    "ProcessFailedError": {RuntimeError},
    "ProcessTimeoutError": {TimeoutError},
    "MissingPackageError": {ImportError},
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


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - {"orbit_ckpt.testing"}))
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
    modules = {f"orbit_ckpt.{path.stem}" for path in folder.glob("[!_]*.py")}
    packages = {f"orbit_ckpt.{path.parent.name}" for path in folder.glob("[!_]*/__init__.py")}
    assert modules | packages | {"orbit_ckpt"} == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    values = [getattr(module, public) for public in PUBLIC[name]]
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
