"""Overwrite values in place, as a training program does after a save has returned."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import cast

import jax
import numpy as np

from orbit_ckpt._src.guards import is_dict, is_list, is_tuple


def spoil(value: object) -> None:
    """Overwrite everything in a value that can be changed.

    NumPy arrays get other bits, JAX arrays are deleted, lists, dicts and fields of dataclasses lose
    their values. Values of other types are left alone.
    """
    if isinstance(value, jax.Array):
        value.delete()
    elif isinstance(value, np.ndarray):
        _invert(cast(np.ndarray, value))
    elif is_dict(value):
        _spoil_all(value.values())
        value.clear()
    elif is_list(value):
        _spoil_all(value)
        value.clear()
    elif is_tuple(value):
        _spoil_all(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _spoil_all(getattr(value, field.name) for field in dataclasses.fields(value))


def _spoil_all(values: Iterable[object]) -> None:
    for value in list(values):
        spoil(value)


def _invert(array: np.ndarray) -> None:
    if array.flags.writeable and array.size:
        array[...] = np.frombuffer(
            bytes(byte ^ 0xFF for byte in array.tobytes()), array.dtype
        ).reshape(array.shape)
