"""Metadata of stored leaves of the built-in types, which needs no JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, overload

import numpy as np
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import DType
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import FormatError, UnsupportedLeafError
from orbit_ckpt._src.metadata.schema import JAX_ARRAY, NUMPY_ARRAY, SCALAR, STRING, LeafRecord
from orbit_ckpt._src.metadata.values import (
    ArrayMetadata,
    Metadata,
    ScalarMetadata,
    StorageMetadata,
    StringMetadata,
)
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt._src.tree.keypath import KeyPath
from orbit_ckpt._src.type_handlers.base import LoadBatch, ParamInfo, load_batch_of, logical_dtype

MetadataT = TypeVar("MetadataT", bound=ArrayMetadata)


class LeafDescriber(Protocol):
    """Describes stored leaves; every type handler does."""

    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[Metadata]:
        """Return metadata of stored leaves without reading their values."""
        ...


class Infos(Sequence[ParamInfo]):
    """The places of leaves, each made when it is needed.

    Attributes:
        directory: The directory of the tree.
    """

    def __init__(
        self,
        records: Sequence[LeafRecord],
        make: Callable[[Sequence[LeafRecord]], Sequence[ParamInfo]],
        directory: Path,
    ) -> None:
        """Make the sequence; `make` returns the places of some of the leaves."""
        self._records = records
        self._make = make
        self.directory = directory

    @overload
    def __getitem__(self, index: int) -> ParamInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ParamInfo]: ...
    @override
    def __getitem__(self, index: int | slice) -> ParamInfo | Sequence[ParamInfo]:
        if isinstance(index, slice):
            return self._make(self._records[index])
        return self._make([self._records[index]])[0]

    @override
    def __len__(self) -> int:
        return len(self._records)


def layouts_of(infos: Sequence[ParamInfo]) -> list[ZarrArray]:
    """Return the layouts of the arrays of one restore."""
    if not infos:
        return []
    return load_batch_of(infos[0]).layouts.find((info.location, info.name) for info in infos)


def array_metadata(infos: Sequence[ParamInfo], make: type[MetadataT]) -> list[MetadataT]:
    """Return metadata of stored arrays as `make` instances."""
    if not infos:
        return []
    leaves = [(info.location, info.name, info.write_shape) for info in infos]
    return _describe_arrays(leaves, make, load_batch_of(infos[0]), infos[0].parent_dir, infos)


def _describe_arrays(
    leaves: Sequence[tuple[KeyPath, str, Shape | None]],
    make: type[MetadataT],
    batch: LoadBatch,
    directory: Path,
    infos: Sequence[ParamInfo],
) -> list[MetadataT]:
    """Return metadata of stored arrays.

    Args:
        leaves: Path, storage name and recorded write shape of each.
        make: The class of the metadata.
        batch: The stored tree.
        directory: Its directory.
        infos: The places of the leaves, made on demand.
    """
    arrays, shardings, details = batch.arrays, batch.shardings, batch.details
    layouts = batch.layouts.find((path, name) for path, name, _ in leaves)
    storages: dict[object, StorageMetadata] = {}
    found: list[MetadataT] = []
    for i, ((_, name, write_shape), layout) in enumerate(zip(leaves, layouts, strict=True)):
        shape, dtype = layout.shape, layout.dtype
        if details and name in details:
            dtype = logical_dtype(infos[i], dtype)
        record = arrays.get(name) if arrays else None
        if record is not None:
            write_shape = record.write_shape if write_shape is None else write_shape  # noqa: PLW2901 - completed
            if record.random_key_impl is not None:
                dtype, trailing = key_type_of(infos[i], layout.dtype)
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


class BuiltInDescriber(LeafDescriber):
    """Describes leaves of a built-in type, by their records alone."""

    def describe(
        self, records: Sequence[LeafRecord], batch: LoadBatch, infos: Infos
    ) -> Sequence[Metadata]:
        """Return metadata of the leaves of one tree; `infos` are made on demand."""
        raise NotImplementedError


class _Arrays(BuiltInDescriber):
    def __init__(self, make: type[ArrayMetadata]) -> None:
        self._make = make

    @override
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[ArrayMetadata]:
        return array_metadata(infos, self._make)

    @override
    def describe(
        self, records: Sequence[LeafRecord], batch: LoadBatch, infos: Infos
    ) -> Sequence[Metadata]:
        leaves = [(record.path, record.name, record.write_shape) for record in records]
        return _describe_arrays(leaves, self._make, batch, infos.directory, infos)


class _Strings(BuiltInDescriber):
    @override
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[StringMetadata]:
        return string_metadata(infos)

    @override
    def describe(
        self, records: Sequence[LeafRecord], batch: LoadBatch, infos: Infos
    ) -> Sequence[Metadata]:
        return [StringMetadata(record.name, infos.directory) for record in records]


_arrays = _Arrays(ArrayMetadata)
BUILT_IN: Mapping[str, LeafDescriber] = {
    JAX_ARRAY: _arrays,
    NUMPY_ARRAY: _arrays,
    SCALAR: _Arrays(ScalarMetadata),
    STRING: _Strings(),
}
"""Describers of leaves, by built-in typestr."""
