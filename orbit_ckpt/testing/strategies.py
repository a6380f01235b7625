"""Hypothesis strategies: dtypes, arrays, shardings, trees and damage; needs `hypothesis`.

Strategies of rules are in `orbit_ckpt.testing.rule_strategies`. Nothing is drawn that a save
refuses, except two keys of a tree that share a storage name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.type_handlers.base import SaveArgs
from orbit_ckpt.testing.damage import BitFlip, Cut, files_of
from orbit_ckpt.testing.placement import place

JAX_DTYPES = (
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32"),
    *("complex64", "bfloat16", "int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"),
)
"""Dtypes of JAX arrays, with 64-bit mode off."""

NUMPY_DTYPES = (
    *JAX_DTYPES,
    *("int64", "uint64", "float64", "complex128", "float6_e2m3fn", "float8_e8m0fnu", "int2"),
    *(">i4", ">f8", ">c8", "datetime64[s]", "timedelta64[ns]"),
)
"""Dtypes of NumPy arrays."""

LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)
"""Lengths of dimensions, most of which several meshes divide."""

_MESHES: Sequence[dict[str, int]] = [
    *({"x": 1}, {"x": 2}, {"x": 3}, {"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}),
    {"x": 3, "y": 2},
]


class Pair(NamedTuple):
    """A namedtuple in drawn trees."""

    first: object
    second: object


class Single(NamedTuple):
    """A namedtuple of one field in drawn trees."""

    only: object


def dtypes() -> st.SearchStrategy[np.dtype[Any]]:
    """Draw a dtype that NumPy arrays may have."""
    return st.sampled_from(NUMPY_DTYPES).map(np.dtype)


def jax_dtypes() -> st.SearchStrategy[np.dtype[Any]]:
    """Draw a dtype that JAX arrays may have."""
    return st.sampled_from(JAX_DTYPES).map(np.dtype)


def shapes(lengths: Sequence[int] = range(6), max_dims: int = 3) -> st.SearchStrategy[Shape]:
    """Draw a shape whose dimensions have given lengths."""
    return st.lists(st.sampled_from(lengths), max_size=max_dims).map(tuple)


@st.composite
def numpy_arrays(
    draw: st.DrawFn,
    dtype: st.SearchStrategy[np.dtype[Any]] | None = None,
    shape: st.SearchStrategy[Shape] | None = None,
) -> HostArray:
    """Draw an array of random bits: every NaN, infinity and denormal number may occur."""
    kind = draw(dtypes() if dtype is None else dtype)
    drawn = draw(shapes() if shape is None else shape)
    size = math.prod(drawn) * kind.itemsize
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    data = rng.integers(0, 256, size, np.uint8)
    if kind.itemsize == 1 and kind.name not in {"int8", "uint8"}:
        data &= np.uint8(2 ** _bits_of(kind) - 1)
    if kind.name in {"int2", "int4"}:  # kept with their sign in all eight bits
        data = data.astype(np.int8).astype(kind).view(np.uint8)
    return cast(HostArray, data.view(kind).reshape(drawn))


def _bits_of(dtype: np.dtype[Any]) -> int:
    if dtype.kind == "b":
        return 1
    kind = ml_dtypes.iinfo if "int" in dtype.name else ml_dtypes.finfo
    info = cast(Callable[[object], object], kind)
    return cast(int, getattr(info(dtype), "bits", 8))


@st.composite
def shardings(draw: st.DrawFn, shape: Shape) -> NamedSharding:
    """Draw a sharding that divides a shape, over some of the devices here."""
    devices = jax.devices()
    axes = draw(st.sampled_from([m for m in _MESHES if math.prod(m.values()) <= len(devices)]))
    unused = draw(st.permutations(list(axes)))
    spec: list[tuple[str, ...] | None] = []
    for length in shape:
        taken = unused[: draw(st.integers(0, len(unused)))]
        if taken and length % math.prod(axes[axis] for axis in taken) == 0:
            spec.append(tuple(taken))
            unused = unused[len(taken) :]
        else:
            spec.append(None)
    some = np.array(devices[: math.prod(axes.values())]).reshape(tuple(axes.values()))
    return NamedSharding(Mesh(some, tuple(axes)), PartitionSpec(*spec))


@st.composite
def jax_arrays(draw: st.DrawFn) -> jax.Array:
    """Draw a JAX array of any dtype and sharding."""
    host = draw(numpy_arrays(jax_dtypes(), shapes(LENGTHS)))
    return place(host, draw(shardings(host.shape)))


@st.composite
def random_keys(draw: st.DrawFn) -> jax.Array:
    """Draw a typed PRNG key, or an array of them."""
    impl = draw(st.sampled_from(["threefry2x32", "rbg", "unsafe_rbg"]))
    key = jax.random.key(draw(st.integers(0, 2**31 - 1)), impl=impl)
    count = draw(st.integers(0, 3))
    return jax.random.split(key, count) if count else key


@st.composite
def save_args(draw: st.DrawFn, array: HostArray | jax.Array) -> SaveArgs:
    """Draw how to cut an array, into at most a few hundred chunks."""
    limit = max(array.dtype.itemsize, array.nbytes // draw(st.integers(1, 40)))
    is_small = array.ndim > 0 and array.size < 300
    axes = draw(st.sets(st.sampled_from(range(array.ndim)))) if is_small else ()
    nbytes = draw(st.sampled_from([None, limit]))
    return SaveArgs(chunk_byte_size=nbytes, shard_axes=tuple(axes))


def scalars() -> st.SearchStrategy[object]:
    """Draw a Python or NumPy scalar."""
    return st.one_of(
        st.integers(-(2**63), 2**63 - 1),
        st.booleans(),
        st.floats(),
        st.complex_numbers(),
        numpy_arrays(shape=st.just(())).map(lambda array: cast(object, array[()])),
    )


def leaves() -> st.SearchStrategy[object]:
    """Draw a leaf of any built-in type, or an empty container."""
    empty: list[object] = [None, {}, [], ()]
    return st.one_of(
        scalars(),
        st.text(max_size=20),
        st.binary(max_size=20),
        st.sampled_from(empty),
        numpy_arrays(),
        jax_arrays(),
    )


def keys() -> st.SearchStrategy[str]:
    """Draw a key of a dict, also one that looks like part of a path."""
    return st.text(max_size=4) | st.sampled_from(["a", "a.b", "a/b", "~", "0", ".", "category"])


def trees(
    leaf: st.SearchStrategy[object] | None = None, *, max_leaves: int = 12
) -> st.SearchStrategy[object]:
    """Draw a tree of dicts, lists, tuples and namedtuples; it may be a single leaf."""
    return st.recursive(leaves() if leaf is None else leaf, _containers, max_leaves=max_leaves)


def _containers(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(
        st.dictionaries(keys(), inner, max_size=4),
        st.dictionaries(st.integers(-2, 12), inner, max_size=4),
        st.dictionaries(st.tuples(st.integers(0, 1), keys()), inner, max_size=2),
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Single, inner),
    )


@st.composite
def damage(draw: st.DrawFn, checkpoint: Path) -> BitFlip | Cut:
    """Draw damage to one file of a checkpoint; `applied` inflicts it."""
    file = draw(st.sampled_from([file for file in files_of(checkpoint) if file.stat().st_size]))
    name = file.relative_to(checkpoint).as_posix()
    at = draw(st.integers(0, file.stat().st_size - 1))
    if draw(st.booleans()):
        return Cut(name, at)
    return BitFlip(name, at, draw(st.integers(0, 7)))
