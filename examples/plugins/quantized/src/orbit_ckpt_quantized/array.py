"""Arrays of 8-bit integers with scales, which `jax.jit` takes apart and checkpoints do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import jax
import jax.numpy as jnp
from typing_extensions import override

from orbit_ckpt import ArrayRestoreArgs, LazyArray
from orbit_ckpt.checkpoint_utils import construct_restore_args
from orbit_ckpt.type_handlers import LeafNode

AnyArray = jax.Array | jax.ShapeDtypeStruct | LazyArray

_MAX_INT8 = 127


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedArray(LeafNode):
    """An array that is the product of small integers and scales.

    Attributes:
        values: The integers.
        scales: The scales; each dimension is 1 or that of the values. In targets both may be
            `jax.ShapeDtypeStruct`; a lazy load returns both as `LazyArray`.
    """

    values: AnyArray
    scales: AnyArray

    is_checkpoint_leaf: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        return self.values.shape

    def dequantized(self) -> jax.Array:
        """Return the array with the dtype of the scales."""
        return jnp.asarray(self.values).astype(self.scales.dtype) * jnp.asarray(self.scales)

    @override
    def restore_args(self) -> QuantizedRestoreArgs:
        return QuantizedRestoreArgs(values=_args_of(self.values), scales=_args_of(self.scales))


def _args_of(array: AnyArray) -> ArrayRestoreArgs:
    return cast(ArrayRestoreArgs, construct_restore_args(array))


@dataclass
class QuantizedRestoreArgs(ArrayRestoreArgs):
    """How a quantized array is restored.

    The fields of `ArrayRestoreArgs` apply to both arrays as far as they suit: a sharding to the
    scales in the dimensions that they have, a dtype to the scales only.

    Attributes:
        values: How the values are restored, instead.
        scales: How the scales are restored, instead.
    """

    restore_type: object = QuantizedArray
    values: ArrayRestoreArgs | None = None
    scales: ArrayRestoreArgs | None = None


def quantize(array: jax.Array, axis: int = -1) -> QuantizedArray:
    """Return the nearest quantized array with a scale for every slice along an axis."""
    largest = jnp.max(jnp.abs(array), axis=axis, keepdims=True)
    scales = jnp.where(largest == 0, 1, largest / _MAX_INT8)
    return QuantizedArray(jnp.round(array / scales).astype(jnp.int8), scales)
