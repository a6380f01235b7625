"""Write trees as Flax's msgpack files, with the bytes of `flax.serialization.to_bytes`."""

from __future__ import annotations

import struct

import msgpack
import numpy as np

from orbit_ckpt._src.arrays.dtypes import storable
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import NameCollisionError
from orbit_ckpt._src.formats.array_file import ArrayFile, Head
from orbit_ckpt._src.formats.flax_msgpack.scan import (
    CHUNKED,
    COMPLEX,
    NDARRAY,
    SCALAR,
    SUFFIX,
    begins_tree,
)
from orbit_ckpt._src.formats.writing import (
    ArrayStream,
    WriteRequest,
    array_stream,
    kind_of,
    new_file,
    unsupported_leaves,
)
from orbit_ckpt._src.guards import is_list_or_tuple
from orbit_ckpt._src.tree.flatten import children_of, flatten, is_leaf
from orbit_ckpt._src.tree.keypath import format_path, key_name

MAX_PART_BYTES = 1 << 30
"""Maximum bytes of an array in one part; larger arrays are split, as in Flax."""


def write(request: WriteRequest) -> None:
    """Write a tree into one file.

    Lists and tuples become dicts with positions as keys, namedtuples dicts of their fields, and all
    keys become str.

    Raises:
        UnsupportedLeafError: The format cannot hold some leaves; nothing was written.
        NameCollisionError: Keys of a dict are equal as str; nothing was written.
        CheckpointExistsError: The path exists and `overwrite` is not set.
        ValueError: A limit on the size of files is given, or the tree is a single value, whose
            file would not be recognized as Flax's under this name.
    """
    if request.max_shard_bytes is not None:
        raise ValueError("Flax has a single file and no shards; give no size of them")
    _check(request.tree)
    _check_name(request)
    with new_file(request.path, overwrite=request.overwrite) as file:
        written = ArrayFile(file, request)
        _write_node(written, request.tree)
        written.finish()


def _check(tree: object) -> None:
    flat = flatten(tree)
    refused = {
        names: kind_of(value)
        for names, value in zip(flat.names, flat.values, strict=True)
        if not is_writable(value)
    }
    if refused:
        raise unsupported_leaves("Files of Flax", refused)
    if len(set(flat.names)) < len(flat.names):
        same = [format_path(n) for i, n in enumerate(flat.names) if n in flat.names[:i]]
        raise NameCollisionError(f"Several leaves would be called {', '.join(same)}.", paths=same)


def _check_name(request: WriteRequest) -> None:
    """Check that the file will be recognized; the bytes of a single number are ambiguous."""
    tree = request.tree
    if request.path.name.endswith(SUFFIX) or not is_leaf(tree) or array_stream(tree) is not None:
        return
    if not begins_tree(_pack(tree)):
        raise ValueError(
            f"{request.path}: a file of Flax with a single value ({kind_of(tree)}) is recognized "
            f"only by a name that ends in {SUFFIX}. Choose such a name."
        )


def is_writable(value: object) -> bool:
    """Return whether the format can hold a leaf."""
    array = array_stream(value)
    if array is not None:
        return storable(array.dtype) and array.dtype.kind not in "mM"
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    if isinstance(value, str | bytes):
        return len(value) < 2**30
    return isinstance(value, float | complex) or (is_leaf(value) and _is_container(value))


def _is_container(value: object) -> bool:
    return value is None or isinstance(value, dict | list | tuple)


def _write_node(file: ArrayFile, node: object) -> None:
    array = array_stream(node)
    if array is not None:
        _write_array(file, array, is_scalar=isinstance(node, np.generic))
    elif is_leaf(node):
        file.write(_pack(node))
    else:
        children = children_of(node)
        file.write(_map_head(len(children)))
        for key, child in children:
            file.write(_pack(key_name(key)))
            _write_node(file, child)


def _write_array(file: ArrayFile, array: ArrayStream, *, is_scalar: bool) -> None:
    if array.nbytes <= MAX_PART_BYTES:
        file.write(_array_head(array.shape, array, SCALAR if is_scalar else NDARRAY))
        file.write_array(array)
        return
    itemsize = array.dtype.itemsize
    part = max(1, MAX_PART_BYTES // itemsize) * itemsize
    starts = range(0, array.nbytes, part)
    shape = {str(i): n for i, n in enumerate(array.shape)}
    file.write(_map_head(3) + _pack(CHUNKED) + _pack(obj=True) + _pack("shape") + _pack(shape))
    file.write(_pack("chunks") + _map_head(len(starts)))
    heads: list[Head] = []
    for i, start in enumerate(starts):
        elements = min(part, array.nbytes - start) // itemsize
        heads.append((start, _pack(str(i)) + _array_head((elements,), array, NDARRAY)))
    file.write_array(array, heads)


def _array_head(shape: Shape, array: ArrayStream, code: int) -> bytes:
    """Return the header of an array."""
    nbytes = array.dtype.itemsize
    for n in shape:
        nbytes *= n
    head = (
        b"\x93"
        + msgpack.packb(shape)
        + _pack(array.dtype.name)
        + b"\xc6"
        + struct.pack(">I", nbytes)
    )
    return b"\xc9" + struct.pack(">Ib", len(head) + nbytes, code) + head


def _map_head(count: int) -> bytes:
    return b"\xdf" + struct.pack(">I", count)


def _pack(obj: object) -> bytes:
    if isinstance(obj, complex):
        data = msgpack.packb([obj.real, obj.imag])
        return msgpack.packb(msgpack.ExtType(COMPLEX, data))
    is_empty = is_list_or_tuple(obj) and not obj
    return msgpack.packb({} if is_empty else obj)
