"""Read the metadata of a checkpoint without reading its arrays.

The module is callable: `orbit_ckpt.metadata(path)` returns the metadata of a checkpoint as
instances of the classes in this module.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names
from orbit_ckpt._src.metadata_module import MetadataModule

if TYPE_CHECKING:
    from orbit_ckpt._src.metadata.values import (
        ArrayMetadata,
        Metadata,
        ScalarMetadata,
        StepMetadata,
        StorageMetadata,
        StringMetadata,
        TreeMetadata,
    )

__all__ = [
    "ArrayMetadata",
    "Metadata",
    "ScalarMetadata",
    "StepMetadata",
    "StorageMetadata",
    "StringMetadata",
    "TreeMetadata",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "metadata.values": "ArrayMetadata, Metadata, ScalarMetadata, StepMetadata, "
        "StorageMetadata, StringMetadata, TreeMetadata",
    },
)

sys.modules[__name__].__class__ = MetadataModule
