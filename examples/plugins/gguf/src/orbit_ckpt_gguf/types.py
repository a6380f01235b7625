"""The types of tensors and of metadata values in GGUF files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import ml_dtypes
import numpy as np

VALUES_PER_BLOCK = 32
"""How many values of Q8_0 share a scale."""

Q8_0_BLOCK = np.dtype([("scale", "<f2"), ("values", "i1", (VALUES_PER_BLOCK,))])
"""A block of Q8_0."""

Q8_0 = 8

PLAIN: dict[int, np.dtype] = {
    0: np.dtype("<f4"),
    1: np.dtype("<f2"),
    24: np.dtype("i1"),
    25: np.dtype("<i2"),
    26: np.dtype("<i4"),
    27: np.dtype("<i8"),
    28: np.dtype("<f8"),
    30: np.dtype(ml_dtypes.bfloat16),
}
"""The dtypes of types whose elements are stored one after the other."""

_NAMES = {
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}


def is_readable(kind: int) -> bool:
    """Return whether tensors of a type can be read."""
    return kind in PLAIN or kind == Q8_0


def type_name(kind: int) -> str:
    """Return the name of a type of tensors, for messages."""
    return _NAMES.get(kind, f"the unknown type {kind}")


def nbytes_of(kind: int, elements: int) -> int:
    """Return how many bytes the elements of a tensor have."""
    if kind == Q8_0:
        return elements // VALUES_PER_BLOCK * Q8_0_BLOCK.itemsize
    return elements * PLAIN[kind].itemsize


class ValueType(IntEnum):
    """The types of metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


CODES = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "B",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
"""How `struct` calls the types of numbers."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a file.

    Attributes:
        name: Its name.
        shape: Its shape in NumPy's order, which is the reverse of the file's.
        kind: Its type.
        offset: Where it begins in the file.
        nbytes: How many bytes it has there.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    nbytes: int
