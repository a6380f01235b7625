"""The base of argument classes and their registration, under Orbax's module name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.items.arguments import (
        CheckpointArgs,
        get_registered_args_cls,
        has_registered_args,
        register_with_handler,
    )
    from orbit_ckpt._src.items.arguments import handler_class_of as get_registered_handler_cls

__all__ = [
    "CheckpointArgs",
    "get_registered_args_cls",
    "get_registered_handler_cls",
    "has_registered_args",
    "register_with_handler",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "items.arguments": (
            "CheckpointArgs, get_registered_args_cls, has_registered_args, register_with_handler, "
            "handler_class_of as get_registered_handler_cls"
        ),
    },
)
