"""Metadata of stored leaves of the built-in types, which needs no JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import DType
from orbit_ckpt._src.errors import FormatError, UnsupportedLeafError
from orbit_ckpt._src.metadata.schema import JAX_ARRAY, NUMPY_ARRAY, SCALAR, STRING
from orbit_ckpt._src.metadata.values import (
    ArrayMetadata,
    Metadata,
    ScalarMetadata,
    StorageMetadata,
    StringMetadata,
)
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt._src.type_handlers.base import ParamInfo, load_batch_of, logical_dtype

MetadataT = TypeVar("MetadataT", bound=ArrayMetadata)


class LeafDescriber(Protocol):
    """Describes stored leaves; every type handler does."""

    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[Metadata]:
        """Return metadata of stored leaves without reading their values."""
        ...


def layouts_of(infos: Sequence[ParamInfo]) -> list[ZarrArray]:
    """Return the layouts of the arrays of one restore."""
    if not infos:
        return []
    return load_batch_of(infos[0]).reader.layouts((info.location, info.name) for info in infos)


def array_metadata(infos: Sequence[ParamInfo], make: type[MetadataT]) -> list[MetadataT]:
    """Return metadata of stored arrays as `make` instances."""
    if not infos:
        return []
    batch = load_batch_of(infos[0])
    arrays, shardings, details = batch.arrays, batch.shardings, batch.details
    directory = infos[0].parent_dir
    storages: dict[object, StorageMetadata] = {}
    found: list[MetadataT] = []
    for info, layout in zip(infos, layouts_of(infos), strict=True):
        name, write_shape = info.name, info.write_shape
        shape = layout.shape
        dtype = logical_dtype(info, layout.dtype) if details else layout.dtype
        record = arrays.get(name)
        if record is not None:
            write_shape = record.write_shape if write_shape is None else write_shape
            if record.random_key_impl is not None:
                dtype, trailing = key_type_of(info, layout.dtype)
                shape = shape[: len(shape) - trailing]
        storage = storages.get((id(layout), write_shape))
        if storage is None:
            storage = StorageMetadata(layout.chunk_shape, write_shape, layout.compression)
            storages[id(layout), write_shape] = storage
        found.append(make(name, directory, shape, shardings.get(name), dtype, storage))
    return found


def string_metadata(infos: Sequence[ParamInfo]) -> list[StringMetadata]:
    """Return metadata of stored strings."""
    return [StringMetadata(info.name, info.parent_dir) for info in infos]


def key_type_of(info: ParamInfo, stored: DType) -> tuple[DType, int]:
    """Return the dtype of stored keys and the number of trailing dimensions of their data.

    Raises:
        FormatError: Their data has another dtype than keys have.
        UnsupportedLeafError: This JAX does not have their implementation.
    """
    from orbit_ckpt._src.type_handlers.prng import key_type  # noqa: PLC0415 - their dtype is JAX's

    impl = load_batch_of(info).arrays[info.name].random_key_impl or ""
    if stored != np.uint32:
        raise FormatError(f"{info.label}: PRNG keys are stored as uint32, found {stored}")
    try:
        return key_type(impl)
    except (ValueError, KeyError) as error:
        raise UnsupportedLeafError(
            f"{info.label}: PRNG keys of implementation {impl!r} cannot be restored: {error}. "
            "Register the implementation with JAX, or restore the data with "
            "restore_type=np.ndarray.",
            paths=[info.label],
        ) from error


class _Arrays(LeafDescriber):
    @override
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[ArrayMetadata]:
        return array_metadata(infos, ArrayMetadata)


class _Scalars(LeafDescriber):
    @override
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[ScalarMetadata]:
        return array_metadata(infos, ScalarMetadata)


class _Strings(LeafDescriber):
    @override
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[StringMetadata]:
        return string_metadata(infos)


_arrays = _Arrays()
BUILT_IN: Mapping[str, LeafDescriber] = {
    JAX_ARRAY: _arrays,
    NUMPY_ARRAY: _arrays,
    SCALAR: _Scalars(),
    STRING: _Strings(),
}
"""Describers of leaves, by built-in typestr."""
