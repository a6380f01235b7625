"""Metadata of leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.metadata.values import (
        ArrayMetadata,
        Metadata,
        ScalarMetadata,
        StorageMetadata,
        StringMetadata,
    )

__all__ = [
    "ArrayMetadata",
    "Metadata",
    "ScalarMetadata",
    "StorageMetadata",
    "StringMetadata",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "metadata.values": (
            "ArrayMetadata, Metadata, ScalarMetadata, StorageMetadata, StringMetadata"
        ),
    },
)
