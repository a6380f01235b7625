"""Write gzip-compressed zarr2 arrays from a stream of elements in C order."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Self

from orbit_ckpt._src.arrays.dtypes import DType
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.storage.object_write import NewObject
from orbit_ckpt._src.storage.store_path import StorePath

MAX_OPEN = 64
"""Maximum number of incomplete chunks at a time."""

PARTIAL = ".partial"
"""Suffix of files of chunks that are not complete."""

_GZIP_WINDOW = 31
_LEVEL = 1

GZIP = {"id": "gzip", "level": _LEVEL}
"""The compressor that the document of an array names."""
_ZEROS = bytes(1 << 16)


def document_of(
    shape: Shape, dtype: DType, chunks: Shape, compressor: Mapping[str, object] | None
) -> bytes:
    """Return an array's `.zarray`, byte for byte as TensorStore writes it."""
    fields = {
        "chunks": chunks,
        "compressor": compressor,
        "dimension_separator": ".",
        # numpy has no type strings for the ml_dtypes; TensorStore takes their names
        "dtype": dtype.str if dtype.type.__module__ == "numpy" else dtype.name,
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": shape,
        "zarr_format": 2,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


class ChunkFiles:
    """The files of an array's chunks; use as a context manager.

    A stream in C order has the elements of each chunk in the chunk's own C order, so that a single
    pass compresses all chunks. Chunks may extend beyond the array only along the last divided
    dimension; chunks then have length 1 along all dimensions before it.

    Args:
        directory: Where to create the files.
        shape: Shape of the array, not empty.
        chunks: Shape of its chunks.
        itemsize: Size of an element.
        first: Grid index of the first chunk, for a part of an array.
    """

    def __init__(
        self,
        directory: Path,
        shape: Shape,
        chunks: Shape,
        itemsize: int,
        *,
        first: Shape | None = None,
    ) -> None:
        self.written = 0
        self._directory = directory
        self._chunks = chunks
        self._first = first or (0,) * len(shape)
        self._grid = tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))
        divided = [axis for axis, count in enumerate(self._grid) if count > 1]
        axis = divided[-1] if divided else 0
        inner = math.prod(shape[axis + 1 :]) * itemsize
        self._outer = shape[:axis]
        self._row = shape[axis] * inner
        self._run = chunks[axis] * inner
        self._axis = axis
        self._nbytes = math.prod(chunks) * itemsize
        self._open: dict[Shape, _ChunkFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for chunk in self._open.values():
            chunk.close()

    def write(self, data: memoryview) -> None:
        """Write the next bytes of the array."""
        while data.nbytes:
            row, column = divmod(self.written, self._row)
            part, start = divmod(column, self._run)
            size = min(data.nbytes, self._run - start, self._row - column)
            index = self._index(row, part)
            chunk = self._open.get(index)
            if chunk is None:
                name = ".".join(str(i + j) for i, j in zip(index, self._first, strict=True))
                chunk = self._open[index] = _ChunkFile(self._directory / name, self._nbytes)
            chunk.write(data[:size])
            self.written += size
            if self._ends(row, column + size):
                self._open.pop(index).finish()
            data = data[size:]

    def _index(self, row: int, part: int) -> Shape:
        """Return the index of the chunk with a part of a row along the last divided dimension."""
        index = [0] * len(self._grid)
        index[self._axis] = part
        for axis in reversed(range(self._axis)):
            row, position = divmod(row, self._outer[axis])
            index[axis] = position // self._chunks[axis]
        return tuple(index)

    def _ends(self, row: int, end: int) -> bool:
        """Return whether the chunk whose part of a row ends at `end` is complete."""
        if end != self._row and end % self._run:
            return False
        for axis in reversed(range(self._axis)):
            row, position = divmod(row, self._outer[axis])
            is_last = position == self._outer[axis] - 1
            if not is_last and (position + 1) % self._chunks[axis]:
                return False
        return True


class _ChunkFile:
    """A chunk, compressed as its data arrives."""

    def __init__(self, file: Path, nbytes: int) -> None:
        self._path = file
        self._partial = file
        if isinstance(file, StorePath):
            self._file: BinaryIO | NewObject = NewObject(file)
        else:  # two workers may write the same chunk
            self._partial = file.with_name(f"{file.name}.{os.urandom(4).hex()}{PARTIAL}")
            self._file = open(self._partial, "xb")  # noqa: SIM115 - closed by close
        self._compress = zlib.compressobj(_LEVEL, wbits=_GZIP_WINDOW)
        self._missing = nbytes

    def write(self, data: memoryview | bytes) -> None:
        """Add bytes."""
        self._file.write(self._compress.compress(data))
        self._missing -= len(data)

    def finish(self) -> None:
        """Pad the part beyond the array, and sync the file to disk."""
        while self._missing:
            self.write(_ZEROS[: self._missing])
        self._file.write(self._compress.flush())
        if isinstance(self._file, NewObject):
            self._file.finish()
        else:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._partial.rename(self._path)
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
