"""What a msgpack file of Flax holds, as a stored tree."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from msgspec import Struct

from orbit_ckpt.arrays.dtypes import as_dtype
from orbit_ckpt.errors import FormatError, VersionError
from orbit_ckpt.formats.base import StoredTree, TreeParts
from orbit_ckpt.formats.msgpack_scan import ArrayNode, BytesNode
from orbit_ckpt.formats.orbax_legacy import empty_typestr
from orbit_ckpt.handlers.numpy import BYTES
from orbit_ckpt.handlers.scalar import NUMPY
from orbit_ckpt.metadata.rich_types import encode_rich_types, outline_of
from orbit_ckpt.metadata.schema import (
    NUMPY_ARRAY,
    UNKNOWN_TYPE,
    LeafDetail,
    LeafRecord,
    TreeDetails,
    TreeDocument,
    encode_value,
)
from orbit_ckpt.storage.foreign import ForeignArray, ForeignStore, RawArray
from orbit_ckpt.tree.flatten import FlatTree, flatten, is_empty_node
from orbit_ckpt.tree.keypath import format_path, name_path, storage_name

_ELSEWHERE = "//GDAPlaceholder:"
"""Begins what Flax writes in place of an array that is spread over processes."""

_SCALAR, _STRING = "scalar", "string"


class LinkedNode(Struct, frozen=True, gc=False):
    """An array that a file refers to, and that is elsewhere."""

    array: ForeignArray


def stored_tree(tree: object, path: Path, file: Path) -> StoredTree:
    """Return a tree of what `scan_file` finds as one whose leaves are read from the file.

    Args:
        tree: The tree.
        path: What the user calls the checkpoint.
        file: The file.

    Raises:
        FormatError: A number is none that an array can hold.
        VersionError: An array is in another place.
    """
    flat: FlatTree = flatten(tree)
    arrays: dict[str, ForeignArray] = {}
    strings: dict[str, object] = {}
    details: dict[str, LeafDetail] = {}
    records: list[LeafRecord] = []
    names = unique_names([name_path(keys) for keys in flat.paths])
    for keys, name, value in zip(flat.paths, names, flat.values, strict=True):
        typestr, type_ = _kind_of(value)
        is_empty = is_empty_node(value)
        records.append(LeafRecord(keys, name_path(keys), name, typestr, is_empty))
        if type_ is not None:
            details[name] = LeafDetail(type_)
        if isinstance(value, str):
            if value.startswith(_ELSEWHERE):
                raise VersionError(
                    f"{file}: {format_path(keys)}: its array was saved by several processes into "
                    f"{file}_gda, which cannot be read. Restore it with Flax and save it again."
                )
            strings[name] = value
        elif not is_empty:
            arrays[name] = _array_of(value, f"{file}: {format_path(keys)}")
    texts = [encode_value(record) for record in records]
    document = TreeDocument(records, rich_types=encode_rich_types(outline_of(tree), texts))
    return StoredTree(
        path,
        document,
        lambda: TreeParts(ForeignStore(arrays, [file]), strings=strings),
        TreeDetails(leaves=details),
        identity=file,
    )


def unique_names(paths: Iterable[tuple[str, ...]]) -> list[str]:
    """Return storage names of leaves, also where keys have dots that make two the same."""
    found: dict[str, None] = {}
    for names in paths:
        name = storage_name(names)
        while name in found:
            name += "~"
        found[name] = None
    return list(found)


def _kind_of(value: object) -> tuple[str, str | None]:
    """Return the type of a leaf, as documents call it, and what else is to be said of it."""
    if is_empty_node(value):
        return empty_typestr(value), None
    if isinstance(value, LinkedNode):
        return UNKNOWN_TYPE, None
    if isinstance(value, ArrayNode):
        return (_SCALAR, NUMPY) if value.is_scalar else (UNKNOWN_TYPE, None)
    if isinstance(value, BytesNode):
        return NUMPY_ARRAY, BYTES
    return (_STRING if isinstance(value, str) else _SCALAR), None


def _array_of(value: object, where: str) -> ForeignArray:
    if isinstance(value, LinkedNode):
        return value.array
    if isinstance(value, ArrayNode):
        return RawArray(value.shape, value.dtype, value.value)
    if isinstance(value, BytesNode):
        return RawArray((value.nbytes,), as_dtype(np.uint8), value.value)
    try:
        host = np.asarray(value)
    except OverflowError:
        host = np.asarray(None)
    if host.dtype.kind not in "biufc":
        raise FormatError(f"{where}: {value!r} is no number of 64 bits")
    return RawArray((), host.dtype, host.tobytes())
