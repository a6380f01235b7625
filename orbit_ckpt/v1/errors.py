"""Errors of the v1 API; those of `orbit_ckpt.errors` are raised too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.v1.errors import (
        DeletionInProgressError,
        DeletionRecoveryError,
        InvalidLayoutError,
    )

__all__ = [
    "DeletionInProgressError",
    "DeletionRecoveryError",
    "InvalidLayoutError",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "v1.errors": "DeletionInProgressError, DeletionRecoveryError, InvalidLayoutError",
    },
)
