"""Arrays that the last save has stored, known by their identity.

A `jax.Array` is immutable, so that the same object has the same values, if the memory is its own:
see `arrays.references`. Frozen parameters that a training does not pass through a compiled function
stay the same objects from save to save; these need neither be read nor copied from a device.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator, Iterable, Mapping
from contextvars import ContextVar

import jax

from orbit_ckpt._src.arrays.references import is_output

_MIN_BYTES = 1 << 16
"""Smaller arrays are hashed at once."""

_unchanged: ContextVar[frozenset[int]] = ContextVar("orbit_ckpt_unchanged", default=frozenset())


class KnownArrays:
    """The arrays that the last save of one owner has stored; holds none of them."""

    def __init__(self) -> None:
        self._arrays: Mapping[str, weakref.ref[jax.Array]] = {}
        self._stored_in: object = None

    def set(self, stored_in: object, arrays: Mapping[str, weakref.ref[jax.Array]]) -> None:
        """Note what a save has stored.

        Args:
            stored_in: What identifies the database that holds them.
            arrays: The arrays by storage name, see `refer_to`.
        """
        self._stored_in = stored_in
        self._arrays = arrays

    def drop(self) -> None:
        """Forget all."""
        self.set(None, {})

    def among(self, leaves: Iterable[tuple[str, object]]) -> frozenset[int]:
        """Return the ids of the leaves, of a tree to be saved, that are the stored arrays."""
        known = self._arrays
        if not known:
            return frozenset()
        return frozenset(
            id(value)
            for name, value in leaves
            if name in known and isinstance(value, jax.Array) and known[name]() is value
        )

    def are_in(self, database: object) -> bool:
        """Return whether a database is the one that holds them."""
        return self._stored_in is not None and self._stored_in == database


def refer_to(leaves: Iterable[tuple[str, object]]) -> dict[str, weakref.ref[jax.Array]]:
    """Return weak references to the large arrays whose values cannot change, by name."""
    return {
        name: weakref.ref(value)
        for name, value in leaves
        if isinstance(value, jax.Array) and value.nbytes >= _MIN_BYTES and is_output(value)
    }


@contextlib.contextmanager
def unchanged(ids: frozenset[int]) -> Generator[None]:
    """Declare that the base step holds the arrays with some ids, while they are staged."""
    token = _unchanged.set(ids)
    try:
        yield
    finally:
        _unchanged.reset(token)


def is_unchanged(array: jax.Array) -> bool:
    """Return whether the base step of the save that is being staged holds an array."""
    return id(array) in _unchanged.get()
