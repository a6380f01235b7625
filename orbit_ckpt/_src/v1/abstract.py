"""Abstract leaves: from the metadata of a stored tree, and to arguments of a load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jax.experimental.layout import Format
from jax.sharding import AbstractMesh, NamedSharding

from orbit_ckpt._src.arrays.dtypes import DType, is_prng_dtype
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.metadata.values import (
    ArrayMetadata as EngineArray,
)
from orbit_ckpt._src.metadata.values import (
    Metadata,
    ScalarMetadata,
    StorageMetadata,
    StringMetadata,
)
from orbit_ckpt._src.pytree.restore.target import restore_args_of
from orbit_ckpt._src.tree.build import PLACEHOLDER
from orbit_ckpt._src.type_handlers.array_target import ArrayRestoreArgs
from orbit_ckpt._src.type_handlers.base import RestoreArgs
from orbit_ckpt._src.type_handlers.lazy import LazyArray
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY

_STRING = "string"
"""How the metadata of a tree shows a string."""

_SCALARS = (bool, int, float, complex, str, bytes, np.generic)


@dataclass
class ArrayMetadata:
    """A stored JAX array; as an abstract leaf it loads the array as it was saved.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        sharding_metadata: Its recorded sharding, if any.
        storage_metadata: How it is stored.
    """

    shape: Shape | None
    dtype: DType | None
    sharding_metadata: ShardingMetadata | None
    storage_metadata: StorageMetadata | None

    @property
    def sharding(self) -> jax.sharding.Sharding | None:
        """The recorded sharding on the devices of this program.

        Raises:
            ValueError: It needs devices that do not exist here.
        """
        recorded = self.sharding_metadata
        return None if recorded is None else recorded.to_jax_sharding()


@dataclass
class NumpyMetadata:
    """A stored NumPy array; as an abstract leaf it loads the array as it was saved.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        storage_metadata: How it is stored.
    """

    shape: Shape | None
    dtype: DType | None
    storage_metadata: StorageMetadata | None


def abstract_leaf(leaf: object) -> object:
    """Return the abstract form of a leaf of a stored tree's metadata."""
    match leaf:
        case StringMetadata():
            return _STRING
        case ScalarMetadata():
            return np.zeros((), leaf.dtype).item()
        case EngineArray():
            is_numpy = leaf.sharding is None and (
                leaf.storage is None or leaf.storage.write_shape is None
            )
            if is_numpy:
                return NumpyMetadata(leaf.shape, leaf.dtype, leaf.storage)
            return ArrayMetadata(leaf.shape, leaf.dtype, leaf.sharding, leaf.storage)
        case _:
            return leaf


def abstract_tree(tree: object) -> Any:
    """Return a stored tree's metadata with abstract leaves."""
    return jax.tree.map(abstract_leaf, tree, is_leaf=lambda leaf: isinstance(leaf, Metadata))


def is_abstract_leaf(leaf: object) -> bool:
    """Return whether a value says how to load a leaf."""
    if leaf is PLACEHOLDER or isinstance(leaf, (*_SCALARS, Metadata, RestoreArgs, LazyArray)):
        return True
    if isinstance(leaf, type):
        return GLOBAL_TYPE_HANDLER_REGISTRY.has(leaf) or issubclass(leaf, _SCALARS)
    return _describes_array(leaf) or GLOBAL_TYPE_HANDLER_REGISTRY.has(type(leaf))


def _describes_array(leaf: object) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def load_arguments(
    abstract: object, *, strict: bool, array_args: Callable[..., ArrayRestoreArgs]
) -> object:
    """Return the engine's arguments that load leaves by an abstract tree.

    Args:
        abstract: The tree.
        strict: Whether JAX arrays must have the stored shape.
        array_args: Makes the arguments of a JAX array.
    """

    def arguments(leaf: Any) -> object:
        if leaf is PLACEHOLDER:
            return PLACEHOLDER
        is_plain = isinstance(leaf, (*_SCALARS, type, Metadata, RestoreArgs, LazyArray))
        if is_plain or not _describes_array(leaf):
            return restore_args_of(cast(object, leaf))
        dtype = None if leaf.dtype is None or is_prng_dtype(leaf.dtype) else leaf.dtype
        if isinstance(leaf, ArrayMetadata) or hasattr(leaf, "sharding"):
            shape = None if leaf.shape is None else tuple(leaf.shape)
            return array_args(
                sharding=_sharding_of(leaf), dtype=dtype, global_shape=shape, strict=strict
            )
        return RestoreArgs(restore_type=np.ndarray, dtype=dtype)

    return jax.tree.map(arguments, abstract)


def _sharding_of(leaf: Any) -> Any:
    if isinstance(leaf, ArrayMetadata):
        return leaf.sharding_metadata
    sharding: object = leaf.sharding
    if isinstance(sharding, Format):
        sharding = sharding.sharding
    if isinstance(sharding, NamedSharding) and isinstance(
        cast(object, sharding.mesh), AbstractMesh
    ):
        return NamedSharding(jax.sharding.get_mesh(), sharding.spec)
    return sharding
