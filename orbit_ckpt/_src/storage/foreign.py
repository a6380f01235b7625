"""Present arrays in other programs' files as a store of zarr arrays.

Their metadata documents are synthesized; their chunks are the other program's bytes in place.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import CheckpointError, CorruptionError, FormatError
from orbit_ckpt._src.storage.fingerprint import fingerprint_of
from orbit_ckpt._src.storage.inner_path import InnerFiles
from orbit_ckpt._src.storage.kvstore import ValueStore
from orbit_ckpt._src.storage.layout import ZARR2_DOCUMENT, Extent, Value, join_key
from orbit_ckpt._src.storage.ocdbt import Json
from orbit_ckpt._src.storage.store_errors import NotInTensorStoreError
from orbit_ckpt._src.storage.store_path import StorePath, map_paths
from orbit_ckpt._src.storage.zarr import MAX_DIMENSIONS, parse_array, plain_array

_NUMBER = re.compile(r"0|[1-9][0-9]*")


class ForeignArray(Protocol):
    """One array presented as a zarr2 array: its document and its chunks by their keys.

    Attributes:
        is_decoded: Whether `find` computes chunks instead of saying where they are.
        has_object_per_value: Whether each of them is a file of its own.
    """

    is_decoded: bool = False
    has_object_per_value: bool = False

    def find(self, key: str) -> Value | None:
        """Return a document or chunk, or its place; None if it does not exist.

        Args:
            key: `.zarray`, or the key of a chunk such as `0.0`.

        Raises:
            CorruptionError: A file that should hold it is missing or has changed.
        """
        ...

    def length(self, key: str) -> int | None:
        """Return the size of a value in bytes, None if the key does not exist."""
        value = self.find(key)
        return value.length if isinstance(value, Extent) else None if value is None else len(value)

    def spec(self) -> Json:
        """Return TensorStore's spec of the key-value store with all of these keys.

        Raises:
            FormatError: None exists.
        """
        ...

    def keys(self) -> Sequence[str]:
        """Return the keys that exist; for messages, may be slow."""
        ...


class RawArray(ForeignArray):
    """An array whose elements lie somewhere in a file, little-endian, in C order.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        value: Its bytes, or their place.
    """

    def __init__(self, shape: Shape, dtype: DType, value: Value) -> None:
        layout, self._document = plain_array(shape, tuple(max(1, n) for n in shape), dtype)
        first = layout.chunk_key("", (0,) * len(shape))
        self._chunks = {first: value} if 0 not in shape else {}

    @override
    def find(self, key: str) -> Value | None:
        return self._document if key == ZARR2_DOCUMENT else self._chunks.get(key)

    @override
    def spec(self) -> Json:
        # nothing but the bytes is needed to read it
        raise FormatError("The bytes of this array are in no store that TensorStore knows.")

    @override
    def keys(self) -> Sequence[str]:
        return [ZARR2_DOCUMENT, *self._chunks]


class DecodedArray(ForeignArray):
    """An array that is decoded from a file chunk by chunk, as quantized weights are.

    A part of the array costs the decoding of the chunks that it touches.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        chunk_shape: Shape of a chunk, each dimension at least 1.
        decode: Returns the values of a box, given as slices; called from several threads, for one
            chunk at a time.
    """

    is_decoded = True

    def __init__(
        self,
        shape: Shape,
        dtype: DType,
        chunk_shape: Shape,
        decode: Callable[[tuple[slice, ...]], HostArray],
    ) -> None:
        self._shape = shape
        self._layout, self._document = plain_array(shape, chunk_shape, dtype)
        self._decode = decode

    @override
    def find(self, key: str) -> Value | None:
        if key == ZARR2_DOCUMENT:
            return self._document
        index = self._index_of(key)
        if index is None:
            return None
        layout = self._layout
        starts = [i * n for i, n in zip(index, layout.chunk_shape, strict=True)]
        ends = [
            min(s + n, m) for s, n, m in zip(starts, layout.chunk_shape, self._shape, strict=True)
        ]
        box = tuple(map(slice, starts, ends))
        expected = tuple(end - start for start, end in zip(starts, ends, strict=True))
        values = self._decoded(box, expected)
        if expected == layout.chunk_shape:
            return values.tobytes()
        padded = np.zeros(layout.chunk_shape, values.dtype)
        padded[tuple(map(slice, expected))] = values
        return padded.tobytes()

    def _decoded(self, box: tuple[slice, ...], shape: Shape) -> HostArray:
        try:
            values = np.asarray(self._decode(box), self._layout.dtype.newbyteorder("<"))
        except (CheckpointError, OSError):
            raise
        except Exception as error:  # of a plug-in, which may raise anything
            raise FormatError(
                f"The decoder {self._decode!r} failed for the box {box}: {type(error).__name__}: "
                f"{error}. Tell the authors of the format."
            ) from error
        if values.shape != shape:
            raise FormatError(
                f"The decoder {self._decode!r} returned values of shape {values.shape} for the box "
                f"{box}, expected {shape}. Tell the authors of the format."
            )
        return values

    @override
    def length(self, key: str) -> int | None:
        if key == ZARR2_DOCUMENT:
            return len(self._document)
        return None if self._index_of(key) is None else self._layout.chunk_nbytes

    @override
    def spec(self) -> Json:
        # nothing but the decoder is needed to read it
        raise FormatError("The chunks of this array are in no store that TensorStore knows.")

    @override
    def keys(self) -> Sequence[str]:
        grid = [
            range(-(-m // n)) for m, n in zip(self._shape, self._layout.chunk_shape, strict=True)
        ]
        chunks = (self._layout.chunk_key("", index) for index in itertools.product(*grid))
        return [ZARR2_DOCUMENT, *chunks]

    def _index_of(self, key: str) -> Shape | None:
        """Return the index of a chunk, None if the array has no such one."""
        if not self._shape:
            return () if key == self._layout.chunk_key("", ()) else None
        parts = key.split(self._layout.separator)
        if len(parts) != len(self._shape) or not all(map(_NUMBER.fullmatch, parts)):
            return None
        index = tuple(map(int, parts))
        counts = zip(index, self._shape, self._layout.chunk_shape, strict=True)
        return index if all(i * n < m for i, m, n in counts) else None


class LinkedArray(ForeignArray):
    """A real zarr2 array that another program wrote.

    Args:
        files: The files of its checkpoint.
        name: Its directory there; empty if that is the checkpoint's.
    """

    has_object_per_value = True

    def __init__(self, files: InnerFiles, name: str) -> None:
        self._files = files
        self._name = name
        self._directory = files.root / name
        self._plain_nbytes: int | None = None

    @override
    def find(self, key: str) -> Value | None:
        """Return a document or chunk, or where it is; None if there is none.

        Raises:
            UnsafePathError: A link leads out of the checkpoint.
        """
        if isinstance(self._directory, StorePath):
            return self._find_object(self._directory, key)
        status = self._files.status(join_key(self._name, key))
        return None if status is None else Extent(f"{self._directory}/{key}", 0, status.st_size)

    def _find_object(self, directory: StorePath, key: str) -> Value | None:
        """Return an object itself, or where it is if only parts of it may be needed."""
        if key == ZARR2_DOCUMENT or not self._plain_bytes(directory):
            return directory.bucket.read(f"{directory.prefix}{key}")
        return Extent(f"{directory}/{key}", 0, self._plain_bytes(directory))

    def _plain_bytes(self, directory: StorePath) -> int:
        """Return the size of every chunk if chunks are stored as they are, else 0."""
        if self._plain_nbytes is None:
            document = directory.bucket.read(f"{directory.prefix}{ZARR2_DOCUMENT}")
            layout = None
            if document is not None:
                with contextlib.suppress(FormatError):  # raised when the array is read
                    layout = parse_array(document, zarr_format=2, where=str(directory))
            is_plain = layout is not None and layout.is_direct and layout.compression is None
            self._plain_nbytes = layout.chunk_nbytes if layout is not None and is_plain else 0
        return self._plain_nbytes

    @override
    def length(self, key: str) -> int | None:
        if not isinstance(self._directory, StorePath):
            return super().length(key)
        with contextlib.suppress(FileNotFoundError):
            return self._directory.bucket.size(f"{self._directory.prefix}{key}")
        return None

    @override
    def spec(self) -> Json:
        if isinstance(self._directory, StorePath):
            return self._directory.spec()
        return {"driver": "file", "path": f"{self._directory}/"}

    @override
    def keys(self) -> Sequence[str]:
        root = self._directory
        if isinstance(root, StorePath):
            return root.keys_below()
        return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def check_shape(shape: Shape, itemsize: int) -> None:
    """Check that numpy can have an array of a shape from a file.

    Raises:
        ValueError: It has too many dimensions or, with one of them 0, too long ones.
    """
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{len(shape)} dimensions, of at most {MAX_DIMENSIONS}")
    if any(n < 0 for n in shape) or math.prod([n or 1 for n in shape]) * itemsize > _MAX_NBYTES:
        raise ValueError(f"{str(list(shape))[:80]} is no shape of an array")


_MAX_NBYTES = 2**62


class ForeignStore(ValueStore):
    """Arrays of another program's checkpoint, as a `ValueStore` of zarr2 arrays.

    Args:
        arrays: The arrays by storage name.
        files: Files that determine the places of the arrays. If one changes later, that is an
            error, because the arrays may have moved.
    """

    def __init__(self, arrays: Mapping[str, ForeignArray], files: Sequence[Path] = ()) -> None:
        self.is_remote = any(isinstance(file, StorePath) for file in files)
        self.has_object_per_value = self.is_remote and any(
            array.has_object_per_value for array in arrays.values()
        )
        self._arrays = arrays
        stamps = map_paths(fingerprint_of, files, root=files[0]) if files else ()
        self._stamps = {str(f): (f, stamp) for f, stamp in zip(files, stamps, strict=True)}

    @override
    def find(self, key: str) -> Value | None:
        found = self._split(key)
        value = self._arrays[found[0]].find(found[1]) if found is not None else None
        if isinstance(value, Extent):
            self._check(value.file)
        return value

    @override
    def length(self, key: str) -> int | None:
        found = self._split(key)
        return self._arrays[found[0]].length(found[1]) if found is not None else None

    @override
    def keys_below(self, name: str) -> list[str]:
        array = self._arrays.get(name)
        return [join_key(name, key) for key in array.keys()] if array is not None else []  # noqa: SIM118 - no mapping

    @override
    def places_chunks(self, name: str) -> bool:
        return not getattr(self._arrays.get(name), "is_decoded", True)  # a plug-in may lack it

    @override
    def spec(self, name: str) -> Json:
        try:
            return self._arrays[name].spec()
        except NotInTensorStoreError:
            raise
        except CheckpointError as error:
            raise FormatError(f"{name}: {error}") from error

    def _split(self, key: str) -> tuple[str, str] | None:
        """Split a key into its array and its key within that."""
        name, _, rest = key.rpartition("/")
        while name not in self._arrays:
            if not name:
                return None
            name, _, more = name.rpartition("/")
            rest = f"{more}/{rest}"
        return name, rest

    def _check(self, file: str) -> None:
        known = self._stamps.get(file)
        if known is None:
            return
        path, expected = known
        if isinstance(path, StorePath):  # asking costs a request; once is enough
            self._stamps.pop(file, None)
        try:
            found = fingerprint_of(path)
        except FileNotFoundError:
            found = None
        if found != expected:
            what = "is missing" if found is None else "has been changed"
            raise CorruptionError(
                f"{file} {what} since the checkpoint was opened. Load it again.", file=file
            )
