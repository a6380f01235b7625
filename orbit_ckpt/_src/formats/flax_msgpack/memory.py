"""Trees as msgpack bytes in memory, under Orbax's names."""

from __future__ import annotations

from typing import Any, cast

import jax
import msgpack
import numpy as np

from orbit_ckpt._src.arrays.dtypes import HostArray, is_prng_dtype, storable
from orbit_ckpt._src.formats.flax_msgpack.scan import (
    CHUNKED,
    COMPLEX,
    NDARRAY,
    SCALAR,
    TUPLE,
    scan_bytes,
)
from orbit_ckpt._src.formats.flax_msgpack.write import MAX_PART_BYTES
from orbit_ckpt._src.guards import is_tuple
from orbit_ckpt._src.text import warn_set


def msgpack_serialize(pytree: object, in_place: bool = False) -> bytes:
    """Return a tree as msgpack bytes, as Flax and Orbax write it.

    Args:
        pytree: A tree of dicts, lists, tuples, arrays and values that msgpack can represent.
        in_place: Ignored; the tree is never changed.

    Raises:
        ValueError: A leaf is of a type that the format lacks.
    """
    unused = {"in_place": (in_place, False, "the tree is never changed")}
    warn_set("msgpack_serialize", unused)
    return msgpack.packb(pytree, default=_extension, strict_types=True)


def msgpack_restore(encoded_pytree: bytes) -> Any:  # a tree of any type
    """Decode the result of `msgpack_serialize` to a tree with NumPy arrays.

    Raises:
        FormatError: The bytes are truncated, damaged, or hold something else.
    """
    return scan_bytes(encoded_pytree, "The bytes are not a valid msgpack tree")


def _extension(value: object) -> object:
    """Return the msgpack form of a value that msgpack itself cannot represent."""
    array = _host_array(value)
    if array is not None:
        code = SCALAR if isinstance(value, np.generic) else NDARRAY
        return _parts(array) if array.nbytes > MAX_PART_BYTES else _array(array, code)
    if isinstance(value, complex):
        return msgpack.ExtType(COMPLEX, msgpack.packb((value.real, value.imag)))
    if is_tuple(value):
        return msgpack.ExtType(TUPLE, msgpack_serialize(list(value)))
    raise ValueError(
        f"msgpack has no {type(value).__name__}: {value!r:.80}. Convert it to an array, or to what "
        "JSON has."
    )


def _host_array(value: object) -> HostArray | None:
    """Return an array or scalar of numpy or JAX as an array; None for other values."""
    if not isinstance(value, np.ndarray | np.generic | jax.Array):
        return None
    dtype: Any = cast(Any, value).dtype
    return None if is_prng_dtype(dtype) or not storable(dtype) else np.asarray(cast(Any, value))


def _array(array: HostArray, code: int) -> msgpack.ExtType:
    values = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes("C")
    return msgpack.ExtType(code, msgpack.packb((array.shape, array.dtype.name, values)))


def _parts(array: HostArray) -> dict[str, object]:
    flat = array.reshape(-1)
    length = max(1, MAX_PART_BYTES // array.dtype.itemsize)
    parts = [flat[start : start + length] for start in range(0, flat.size, length)]
    shape = {str(i): n for i, n in enumerate(array.shape)}
    chunks = {str(i): part for i, part in enumerate(parts)}
    return {CHUNKED: True, "shape": shape, "chunks": chunks}
