"""Errors about steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.errors import StepAlreadyExistsError, StepNotFoundError

__all__ = [
    "StepAlreadyExistsError",
    "StepNotFoundError",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "errors": "StepAlreadyExistsError, StepNotFoundError",
    },
)
