"""Compare values exactly: types, dtypes, shapes, shardings and bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import jax
import numpy as np

from orbit_ckpt._src.arrays.dtypes import is_prng_dtype
from orbit_ckpt._src.guards import is_list_or_tuple, is_mapping
from orbit_ckpt.testing.promises import NotMetError


def expect_same(found: object, expected: object, where: str = "the value") -> None:
    """Check for a promise that two values are exactly the same.

    Containers and dataclasses are compared part by part, arrays by type, dtype, shape, sharding
    and bits, other values by type and `==`. Only byte order and the order of a dict's keys may
    differ.

    Args:
        found: What was found.
        expected: What it should be.
        where: What the value is, for the message.
    """
    for what, one, other in _facts(found, expected):
        if one != other:  # to show arrays takes long
            raise NotMetError(f"{what} {_show(one)} of {where}", f"{what} {_show(other)}")
    for name, one, other in _parts(found, expected):
        expect_same(one, other, f"{name} of {where}")


def is_same(found: object, expected: object) -> bool:
    """Return whether two values are exactly the same, as `expect_same` compares them."""
    facts = all(one == other for _, one, other in _facts(found, expected))
    return facts and all(is_same(one, other) for _, one, other in _parts(found, expected))


def _facts(found: object, expected: object) -> Iterator[tuple[str, object, object]]:
    """Yield what must be equal, lazily: a later fact may need the earlier ones to be equal."""
    if isinstance(expected, jax.Array):  # an abstract class; its implementations may differ
        yield "type", "jax.Array" if isinstance(found, jax.Array) else type(found), "jax.Array"
        yield from _array_facts(cast(jax.Array, found), expected)
        return
    yield "type", type(found), type(expected)
    if isinstance(expected, np.ndarray | np.generic):
        yield from _host_facts(cast(np.ndarray, found), cast(np.ndarray, expected))
    elif isinstance(expected, float | complex):
        yield "value", _Bits(found), _Bits(expected)
    elif is_mapping(expected):
        yield "keys", _keys(found), _keys(expected)
    elif is_list_or_tuple(expected):
        yield "length", len(cast(Sequence[object], found)), len(expected)
    elif not dataclasses.is_dataclass(expected):
        yield "value", found, expected


def _keys(value: object) -> list[str]:
    return sorted(map(repr, cast(Mapping[object, object], value)))


def _array_facts(found: jax.Array, expected: jax.Array) -> Iterator[tuple[str, object, object]]:
    yield "dtype", found.dtype, expected.dtype
    yield "shape", found.shape, expected.shape
    if not found.sharding.is_equivalent_to(expected.sharding, expected.ndim):
        yield "sharding", found.sharding, expected.sharding
    if is_prng_dtype(expected.dtype):
        found, expected = jax.random.key_data(found), jax.random.key_data(expected)
    yield "values", _Bits(found), _Bits(expected)


def _host_facts(
    found: np.ndarray | np.generic, expected: np.ndarray | np.generic
) -> Iterator[tuple[str, object, object]]:
    native = expected.dtype.newbyteorder("=")
    yield "dtype", found.dtype.newbyteorder("="), native
    yield "shape", found.shape, expected.shape
    yield "values", _Bits(found.astype(native)), _Bits(expected.astype(native))


def _parts(found: object, expected: object) -> Iterator[tuple[str, object, object]]:
    if is_mapping(expected):
        others = cast(Mapping[object, object], found)
        for key, value in expected.items():
            yield f"[{key!r}]", others[key], value
    elif is_list_or_tuple(expected):
        both = zip(cast(Sequence[object], found), expected, strict=True)
        for i, (one, other) in enumerate(both):
            yield f"[{i}]", one, other
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            yield f".{field.name}", getattr(found, field.name), getattr(expected, field.name)


class _Bits:
    """Values that are equal if their bits are, which NaN and -0.0 need."""

    def __init__(self, value: object) -> None:
        self._array = np.asarray(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bits) and self._array.tobytes() == other._array.tobytes()

    def __hash__(self) -> int:
        return hash(self._array.tobytes())

    def __str__(self) -> str:
        return str(self._array)


def _show(value: object) -> str:
    text = value.__qualname__ if isinstance(value, type) else str(value)
    return text if len(text) < 200 else f"{text[:200]}..."
