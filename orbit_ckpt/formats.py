"""Readers of other programs' checkpoints: the plug-in interface, and format detection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.base import (
        ForeignStep,
        Format,
        LinkedFiles,
        StepRecognizer,
        WholeReader,
        WritableFormat,
    )
    from orbit_ckpt._src.formats.locate import detect_format
    from orbit_ckpt._src.formats.stored_tree import StoredTree, TreeParts
    from orbit_ckpt._src.formats.writing import WriteRequest

__all__ = [
    "ForeignStep",
    "Format",
    "LinkedFiles",
    "StepRecognizer",
    "StoredTree",
    "TreeParts",
    "WholeReader",
    "WritableFormat",
    "WriteRequest",
    "detect_format",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "formats.base": (
            "ForeignStep, Format, LinkedFiles, StepRecognizer, WholeReader, WritableFormat"
        ),
        "formats.locate": "detect_format",
        "formats.stored_tree": "StoredTree, TreeParts",
        "formats.writing": "WriteRequest",
    },
)
