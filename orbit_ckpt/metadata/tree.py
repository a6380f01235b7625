"""Metadata of trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.metadata.values import TreeMetadata

__all__ = [
    "TreeMetadata",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "metadata.values": "TreeMetadata",
    },
)
