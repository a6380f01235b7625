"""Errors that the library raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.errors import (
        AlreadyImportedError,
        BackgroundSaveError,
        CheckpointError,
        CheckpointExistsError,
        CheckpointNotFoundError,
        CorruptionError,
        FormatError,
        IncompleteCheckpointError,
        ItemError,
        ItemNotFoundError,
        LeafError,
        MissingPackageError,
        NameCollisionError,
        NotSupportedError,
        PluginConflictError,
        ProcessCountError,
        ProcessFailedError,
        ProcessTimeoutError,
        StepAlreadyExistsError,
        StepNotFoundError,
        StorageError,
        TransformError,
        TreeMismatchError,
        UnsafePathError,
        UnsupportedLeafError,
        VersionError,
        WorkerLostError,
    )

__all__ = [
    "AlreadyImportedError",
    "BackgroundSaveError",
    "CheckpointError",
    "CheckpointExistsError",
    "CheckpointNotFoundError",
    "CorruptionError",
    "FormatError",
    "IncompleteCheckpointError",
    "ItemError",
    "ItemNotFoundError",
    "LeafError",
    "MissingPackageError",
    "NameCollisionError",
    "NotSupportedError",
    "PluginConflictError",
    "ProcessCountError",
    "ProcessFailedError",
    "ProcessTimeoutError",
    "StepAlreadyExistsError",
    "StepNotFoundError",
    "StorageError",
    "TransformError",
    "TreeMismatchError",
    "UnsafePathError",
    "UnsupportedLeafError",
    "VersionError",
    "WorkerLostError",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "errors": (
            "AlreadyImportedError, BackgroundSaveError, CheckpointError, CheckpointExistsError, "
            "CheckpointNotFoundError, CorruptionError, FormatError, IncompleteCheckpointError, "
            "ItemError, ItemNotFoundError, LeafError, MissingPackageError, NameCollisionError, "
            "NotSupportedError, PluginConflictError, ProcessCountError, ProcessFailedError, "
            "ProcessTimeoutError, StepAlreadyExistsError, StepNotFoundError, StorageError, "
            "TransformError, TreeMismatchError, UnsafePathError, UnsupportedLeafError, "
            "VersionError, WorkerLostError"
        ),
    },
)
