"""The built-in type handlers and their types."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np

from orbit_ckpt._src.type_handlers.array import ArrayHandler
from orbit_ckpt._src.type_handlers.base import TypeHandler
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyHostArray
from orbit_ckpt._src.type_handlers.lazy_save import LazyHandler
from orbit_ckpt._src.type_handlers.numpy import NumpyHandler
from orbit_ckpt._src.type_handlers.scalar import PYTHON_SCALARS, ScalarHandler
from orbit_ckpt._src.type_handlers.string import StringHandler


def built_in_handlers() -> Sequence[tuple[type, TypeHandler]]:
    """Return new handlers of the built-in types; the last one of a typestr restores it."""
    scalars, arrays = ScalarHandler(), NumpyHandler()
    return [
        (LazyArray, LazyHandler(ArrayHandler())),
        (LazyHostArray, LazyHandler(arrays)),
        *((ty, scalars) for ty in (*PYTHON_SCALARS, np.generic)),
        (np.ndarray, arrays),
        (bytes, arrays),
        (jax.Array, ArrayHandler()),
        (str, StringHandler()),
    ]


def lazy_handler(ty: type, find: Callable[[type], TypeHandler | None]) -> TypeHandler | None:
    """Return a handler that writes lazy arrays of a class like their values.

    Args:
        ty: Any class; the result is None unless it is one of lazy arrays.
        find: Returns the handler of a class of values, None without one.
    """
    if not issubclass(ty, LazyArray):
        return None
    values = find(np.ndarray if issubclass(ty, LazyHostArray) else jax.Array)
    return None if values is None else LazyHandler(values)
