"""Recognize checkpoints in Orbax's format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.orbax.format_utils import is_ocdbt_checkpoint, is_orbax_checkpoint

__all__ = [
    "is_ocdbt_checkpoint",
    "is_orbax_checkpoint",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "formats.orbax.format_utils": "is_ocdbt_checkpoint, is_orbax_checkpoint",
    },
)
