"""Handlers that write a tree into one file, under Orbax's module name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.items.aggregate import AggregateHandler, MsgpackHandler

__all__ = [
    "AggregateHandler",
    "MsgpackHandler",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "items.aggregate": "AggregateHandler, MsgpackHandler",
    },
)
