"""Formats of other programs: detection, the plug-in interface, and parts of readers and writers."""

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
        register_format,
    )
    from orbit_ckpt._src.formats.locate import detect_format
    from orbit_ckpt._src.formats.stored_tree import StoredTree, TreeParts, stored_tree
    from orbit_ckpt._src.formats.writing import (
        ArrayStream,
        WriteRequest,
        array_stream,
        named_arrays,
        new_directory,
        new_file,
        unsupported_leaves,
    )
    from orbit_ckpt._src.storage.foreign import DecodedArray, ForeignArray, RawArray
    from orbit_ckpt._src.storage.layout import Extent

__all__ = [
    "ArrayStream",
    "DecodedArray",
    "Extent",
    "ForeignArray",
    "ForeignStep",
    "Format",
    "LinkedFiles",
    "RawArray",
    "StepRecognizer",
    "StoredTree",
    "TreeParts",
    "WholeReader",
    "WritableFormat",
    "WriteRequest",
    "array_stream",
    "detect_format",
    "named_arrays",
    "new_directory",
    "new_file",
    "register_format",
    "stored_tree",
    "unsupported_leaves",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "formats.base": (
            "ForeignStep, Format, LinkedFiles, register_format, StepRecognizer, WholeReader, "
            "WritableFormat"
        ),
        "formats.locate": "detect_format",
        "formats.stored_tree": "stored_tree, StoredTree, TreeParts",
        "formats.writing": (
            "array_stream, ArrayStream, named_arrays, new_directory, new_file, unsupported_leaves, "
            "WriteRequest"
        ),
        "storage.foreign": "DecodedArray, ForeignArray, RawArray",
        "storage.layout": "Extent",
    },
)
