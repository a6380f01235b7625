"""Temporary paths: the two ways in which a checkpoint becomes visible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.checkpointer.temporary_path import (
        AtomicRenameTemporaryPath,
        CommitFileTemporaryPath,
        ReadOnlyTemporaryPath,
        TemporaryPath,
        ValidationError,
    )
    from orbit_ckpt._src.storage.layout import COMMIT_MARKER as COMMIT_SUCCESS_FILE
    from orbit_ckpt._src.storage.layout import TEMPORARY_SUFFIX as TMP_DIR_SUFFIX

__all__ = [
    "COMMIT_SUCCESS_FILE",
    "TMP_DIR_SUFFIX",
    "AtomicRenameTemporaryPath",
    "CommitFileTemporaryPath",
    "ReadOnlyTemporaryPath",
    "TemporaryPath",
    "ValidationError",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "checkpointer.temporary_path": (
            "AtomicRenameTemporaryPath, CommitFileTemporaryPath, ReadOnlyTemporaryPath, "
            "TemporaryPath, ValidationError"
        ),
        "storage.layout": (
            "COMMIT_MARKER as COMMIT_SUCCESS_FILE, TEMPORARY_SUFFIX as TMP_DIR_SUFFIX"
        ),
    },
)
