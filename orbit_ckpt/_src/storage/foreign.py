"""Present arrays in other programs' files as a store of zarr arrays.

Their metadata documents are synthesized; their chunks are the other program's bytes in place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import DType
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import CheckpointError, CorruptionError, FormatError
from orbit_ckpt._src.storage.fingerprint import fingerprint_of
from orbit_ckpt._src.storage.inner_path import InnerFiles
from orbit_ckpt._src.storage.kvstore import ValueStore
from orbit_ckpt._src.storage.layout import ZARR2_DOCUMENT, Extent, Value, join_key
from orbit_ckpt._src.storage.ocdbt import Json
from orbit_ckpt._src.storage.store_path import StorePath, map_paths
from orbit_ckpt._src.storage.zarr import MAX_DIMENSIONS, plain_array


class ForeignArray(Protocol):
    """One array presented as a zarr2 array: its document and its chunks by their keys."""

    def find(self, key: str) -> Value | None:
        """Return a document or chunk, or its place; None if it does not exist.

        Args:
            key: `.zarray`, or the key of a chunk such as `0.0`.

        Raises:
            CorruptionError: A file that should hold it is missing or has changed.
        """
        ...

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


class LinkedArray(ForeignArray):
    """A real zarr2 array that another program wrote on a local file system.

    Args:
        files: The files of its checkpoint.
        name: Its directory there; empty if that is the checkpoint's.
    """

    def __init__(self, files: InnerFiles, name: str) -> None:
        self._files = files
        self._name = name
        self._directory = files.root / name

    @override
    def find(self, key: str) -> Value | None:
        """Return a document or chunk, or where it is; None if there is none.

        Raises:
            UnsafePathError: A link leads out of the checkpoint.
        """
        status = self._files.status(join_key(self._name, key))
        return None if status is None else Extent(f"{self._directory}/{key}", 0, status.st_size)

    @override
    def spec(self) -> Json:
        return {"driver": "file", "path": f"{self._directory}/"}

    @override
    def keys(self) -> Sequence[str]:
        root = self._directory
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
        value = self.find(key)
        return value.length if isinstance(value, Extent) else None if value is None else len(value)

    @override
    def keys_below(self, name: str) -> list[str]:
        array = self._arrays.get(name)
        return [join_key(name, key) for key in array.keys()] if array is not None else []  # noqa: SIM118 - no mapping

    @override
    def spec(self, name: str) -> Json:
        try:
            return self._arrays[name].spec()
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
