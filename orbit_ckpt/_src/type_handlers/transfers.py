"""Choose which arrays a save copies before it returns, and report their transfers."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from msgspec import Struct, structs

from orbit_ckpt._src.arrays.transfer import ArraySnapshot
from orbit_ckpt._src.arrays.watch import LeafWatch, SerializationStatusCallback
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.tree.keypath import KeyPath, format_path, jax_path

PriorityFunction = Callable[[Any], object]
"""Returns the `TransferPriority` of a leaf, given its path as a tuple of JAX's keys."""


class TransferPriority(enum.Enum):
    """When a save with a limit of transfers copies a JAX array to host memory.

    `SYNCHRONOUS` arrays are copied before the save returns. The others are copied when they are
    written, the prioritized ones first; they must not be deleted or donated before that. Without a
    limit of transfers, all arrays are synchronous.
    """

    SYNCHRONOUS = 0
    ASYNCHRONOUS_PRIORITIZED = 1
    ASYNCHRONOUS_DEPRIORITIZED = 2
    UNKNOWN = 3


class TransferSchedule(Struct, frozen=True):
    """How the arrays of one type handler are transferred.

    Attributes:
        callback: Receives the reports; None for no reports.
        priority: Returns the priority of a leaf; None makes all synchronous.
    """

    callback: SerializationStatusCallback | None
    priority: PriorityFunction | None

    @classmethod
    def of(
        cls, handler: object, priority: PriorityFunction | None, *, is_limited: bool
    ) -> TransferSchedule | None:
        """Return the schedule of a type handler, None if there is nothing to do.

        Args:
            handler: The handler; its `status_callback`, if any, takes precedence.
            priority: Returns the priority of leaves.
            is_limited: Whether transfers are limited; otherwise all are synchronous.
        """
        callback: SerializationStatusCallback | None = getattr(handler, "status_callback", None)
        if callback is not None:
            priority = callback.key_priority
        if not is_limited:
            priority = None
        return None if callback is None and priority is None else cls(callback, priority)

    def apply(self, array: ArraySnapshot, path: KeyPath) -> None:
        """Set how the parts of an array are transferred.

        Raises:
            ValueError: The priority of the leaf is unknown.
        """
        keypath = jax_path(path)
        order = 0 if self.priority is None else _order(self.priority(keypath), path)
        watch = LeafWatch(
            self.callback, keypath, sum(shard.region.size for shard in array.shards), order
        )
        array.shards[:] = [
            structs.replace(shard, in_place=shard.in_place or order > 0, watch=watch)
            for shard in array.shards
        ]


def _order(priority: object, path: KeyPath) -> int:
    """Return the number of a priority; Orbax's are accepted too."""
    number = getattr(priority, "value", None)
    known = [p.value for p in TransferPriority if p is not TransferPriority.UNKNOWN]
    if number not in known:
        found = priority if isinstance(priority, enum.Enum) else show(priority)
        raise ValueError(
            f"{format_path(path)}: its priority is {found}. Return one of "
            "TransferPriority.SYNCHRONOUS, ASYNCHRONOUS_PRIORITIZED and ASYNCHRONOUS_DEPRIORITIZED."
        )
    return known.index(number)
