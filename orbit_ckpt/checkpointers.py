"""Checkpointers, under Orbax's module name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.checkpointer.abstract import AbstractCheckpointer
    from orbit_ckpt._src.checkpointer.asynchronous import AsyncCheckpointer, StandardCheckpointer
    from orbit_ckpt._src.checkpointer.checkpointer import Checkpointer, PyTreeCheckpointer

__all__ = [
    "AbstractCheckpointer",
    "AsyncCheckpointer",
    "Checkpointer",
    "PyTreeCheckpointer",
    "StandardCheckpointer",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "checkpointer.abstract": "AbstractCheckpointer",
        "checkpointer.asynchronous": "AsyncCheckpointer, StandardCheckpointer",
        "checkpointer.checkpointer": "Checkpointer, PyTreeCheckpointer",
    },
)
