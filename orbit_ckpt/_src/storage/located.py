"""Chunks of arrays with their places, so that other processes read them without the index."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from msgspec import Struct, structs
from typing_extensions import override

from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.kvstore import ValueStore
from orbit_ckpt._src.storage.layout import Extent, Value, join_key
from orbit_ckpt._src.storage.ocdbt import Json
from orbit_ckpt._src.tree.keypath import KeyPath, key_class, key_value

_PROCESS_MEMORY = "memory:"


class LocatedChunks(Struct, frozen=True):
    """Chunks of arrays, to be read in any process that reaches the files; can be pickled.

    Attributes:
        values: The chunks or their places by key, and the documents of the arrays in `specs`.
        specs: TensorStore's specs of the arrays that it decodes, by storage name.
        is_remote: Whether they are in an object store.
        zarr_format: 2 or 3.
        fill_missing: As for `BatchReader`.
    """

    values: Mapping[str, Value]
    specs: Mapping[str, Json]
    is_remote: bool
    zarr_format: int
    fill_missing: bool

    def open(self) -> BatchReader:
        """Return a reader of these chunks."""
        return BatchReader(
            _LocatedStore(self), zarr_format=self.zarr_format, fill_missing=self.fill_missing
        )


class ChunkLocator:
    """Finds the chunks of one reader's arrays for other processes.

    Args:
        reader: The reader.
    """

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self._specs: dict[str, Json | None] = {}

    def find(self, read: ArrayRead, index: Shape) -> Value | None:
        """Return a chunk or its place; None if another process cannot read it.

        That is one that is missing or damaged, is computed as it is read, or is in memory.
        """
        if not self._can_share(read):
            return None
        try:
            value = self._reader.store.find(read.layout.chunk_key(read.name, index))
        except CheckpointError:
            return None  # reported when it is read here
        is_away = isinstance(value, Extent) and not is_shared(value.file)
        return None if is_away else value

    def split(
        self, chunks: Sequence[tuple[ArrayRead, Shape]]
    ) -> Iterator[tuple[LocatedChunks | None, range]]:
        """Yield ranges of consecutive chunks, located or None for those to be read here."""
        found = [self.find(read, index) for read, index in chunks]
        start = 0
        for is_found, group in itertools.groupby(found, lambda value: value is not None):
            part = range(start, start + len(list(group)))
            start = part.stop
            places = [(*chunks[i], cast(Value, found[i])) for i in part]
            yield (self.pack(places) if is_found else None), part

    def pack(self, chunks: Iterable[tuple[ArrayRead, Shape, Value]]) -> LocatedChunks:
        """Return chunks that were found, with what is needed to read them."""
        reader = self._reader
        values: dict[str, Value] = {}
        specs: dict[str, Json] = {}
        for read, index, value in chunks:
            values[read.layout.chunk_key(read.name, index)] = value
            spec = self._specs.get(read.name)
            if spec is not None and read.name not in specs:
                specs[read.name] = spec
                key = join_key(read.name, read.layout.document_name)
                document = reader.store.find(key)
                if document is not None:
                    values[key] = document
        return LocatedChunks(
            values, specs, reader.store.is_remote, reader.zarr_format, reader.fill_missing
        )

    def _can_share(self, read: ArrayRead) -> bool:
        store = self._reader.store
        if not store.places_chunks(read.name) or self._reader.sums.knows(read):
            return False  # a checksum of the array is compared where all of it is read
        if self._reader.can_stream(read.layout):
            return True
        if read.name not in self._specs:
            self._specs[read.name] = _spec_to_share(store, read.name)
        return self._specs[read.name] is not None


def is_shared(path: Path | str) -> bool:
    """Return whether other processes reach a path: any but one in this process's memory."""
    return not str(path).startswith(_PROCESS_MEMORY)


def for_other_process(read: ArrayRead) -> ArrayRead:
    """Return a read with a path whose keys are not JAX's, which would import it there."""
    return structs.replace(read, path=own_path(read.path))


def own_path(path: KeyPath) -> KeyPath:
    """Return a path with keys of this library in place of JAX's."""
    return tuple(kind(key_value(key)) if (kind := key_class(key)) else key for key in path)


def _spec_to_share(store: ValueStore, name: str) -> Json | None:
    try:
        spec = store.spec(name)
    except CheckpointError:
        return None  # read by other means than TensorStore's
    return None if "'memory'" in repr(spec) else spec


class _LocatedStore(ValueStore):
    def __init__(self, chunks: LocatedChunks) -> None:
        self._chunks = chunks
        self.is_remote = chunks.is_remote

    @override
    def find(self, key: str) -> Value | None:
        return self._chunks.values.get(key)

    @override
    def length(self, key: str) -> int | None:
        value = self.find(key)
        return None if value is None else len(value) if isinstance(value, bytes) else value.length

    @override
    def keys_below(self, name: str) -> list[str]:
        return [key for key in self._chunks.values if key.startswith(f"{name}/" if name else "")]

    @override
    def spec(self, name: str) -> Json:
        return self._chunks.specs[name]
