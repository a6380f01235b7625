"""Types of arrays and their abstract forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.pytree.restore.abstract import to_shape_dtype_struct
    from orbit_ckpt._src.v1.types import (
        AbstractArray,
        AbstractScalar,
        AbstractShardedArray,
        ArrayLike,
        DType,
        Scalar,
        Shape,
    )

__all__ = [
    "AbstractArray",
    "AbstractScalar",
    "AbstractShardedArray",
    "ArrayLike",
    "DType",
    "Scalar",
    "Shape",
    "to_shape_dtype_struct",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "v1.types": (
            "AbstractArray, AbstractScalar, AbstractShardedArray, ArrayLike, DType, Scalar, Shape"
        ),
        "pytree.restore.abstract": "to_shape_dtype_struct",
    },
)
