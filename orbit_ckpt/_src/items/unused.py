"""Options of Orbax's item handlers that have no effect here."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import cast

from orbit_ckpt._src.warn import warn_set

_WHY = {
    "memory_limit_options": "give memory_options",
    "multiprocessing_options": (
        "the checkpointer or manager decides which processes save; give it to that"
    ),
    "array_metadata_validator": "processes always compare what they save",
    "enable_pinned_host_transfer": "arrays are copied from devices in another way",
    "is_prioritized_key_fn": "what may change is copied before a save returns",
}


def warn_of_unused(handler: object, **given: object) -> None:
    """Warn of constructor options that are set but have no effect.

    Args:
        handler: The handler under construction.
        **given: Option values by name.
    """
    options = {name: (value, _default(value), _WHY[name]) for name, value in given.items()}
    warn_set(type(handler).__qualname__, options)


def _default(value: object) -> object:
    """Return the value of an option that stands for "not set"."""
    if is_dataclass(value):
        return cast("object", type(value)())
    return False if isinstance(value, bool) else None
