"""Placeholders for the arrays and bytes of a scanned msgpack file."""

from __future__ import annotations

from typing import cast

import msgpack
import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.storage.layout import Value
from orbit_ckpt._src.storage.value_read import read_value

NUMBERS = frozenset({int, float, bool, type(None)})
"""Types of values of which there may be millions."""


class ArrayNode(Struct, frozen=True, gc=False):
    """An array: its shape and dtype, and its elements or their place."""

    shape: Shape
    dtype: DType
    value: Value
    is_scalar: bool = False


class BytesNode(Struct, frozen=True, gc=False):
    """A value of bytes, or its place."""

    value: Value

    @property
    def nbytes(self) -> int:
        """How many there are."""
        return len(self.value) if isinstance(self.value, bytes) else self.value.length


class ObjectNode(Struct, frozen=True, gc=False):
    """A value that cannot be part of a tree: a timestamp, or of an unknown extension type."""

    value: msgpack.Timestamp | msgpack.ExtType


def with_values(node: object) -> object:
    """Return a tree of `scan_file` with values in place of its nodes; reads arrays.

    Raises:
        CorruptionError: The file has become shorter.
    """
    if isinstance(node, dict):
        fields = cast("dict[object, object]", node)
        return {key: with_values(child) for key, child in fields.items()}
    if isinstance(node, list | tuple):
        elements = cast("list[object]", node)
        children = [one if type(one) in NUMBERS else with_values(one) for one in elements]
        return children if isinstance(node, list) else tuple(children)
    if isinstance(node, ObjectNode):
        return node.value
    if isinstance(node, BytesNode):
        return read_value(node.value)
    if isinstance(node, ArrayNode):
        array = np.frombuffer(read_value(node.value), node.dtype).reshape(node.shape)
        return array[()] if node.is_scalar else array.copy()
    return node
