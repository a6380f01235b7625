"""Functions of arrays, under Orbax's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.arrays.sharding import construct_maximal_shardings
    from orbit_ckpt._src.arrays.slices import Index, Shape
    from orbit_ckpt._src.pytree.restore.abstract import to_shape_dtype_struct

__all__ = ["Index", "Shape", "construct_maximal_shardings", "to_shape_dtype_struct"]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "arrays.sharding": "construct_maximal_shardings",
        "arrays.slices": "Index, Shape",
        "pytree.restore.abstract": "to_shape_dtype_struct",
    },
)
