"""Trees of zarr2 arrays in nested directories, whose names other programs record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import DType, parse_dtype
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.storage.foreign import LinkedArray, check_shape
from orbit_ckpt._src.storage.inner_path import InnerFiles, is_inner_name
from orbit_ckpt._src.storage.layout import ZARR2_DOCUMENT, Extent, Value
from orbit_ckpt._src.storage.value_read import read_value
from orbit_ckpt._src.storage.zarr import parse_array
from orbit_ckpt._src.tree.keypath import (
    DictKey,
    KeyPath,
    NamePath,
    SequenceKey,
    format_path,
    is_sequence_key,
    key_name,
)


class ArrayEntry(Struct, frozen=True):
    """One array as an index lists it.

    Attributes:
        path: Its directory, relative to the checkpoint's.
        shape: Its shape.
        dtype: Name of its dtype.
    """

    path: str
    shape: list[int]
    dtype: str

    def parts(self) -> NamePath:
        """Return the names that the path is made of.

        Raises:
            ValueError: It may lead out of the checkpoint.
        """
        if not (is_inner_name(self.path) and is_inner_name(self.path.replace("\\", "/"))):
            raise ValueError(f"path {self.path[:200]!r} is no directory in the checkpoint")
        return tuple(self.path.split("/"))

    def layout(self) -> tuple[Shape, DType]:
        """Return its shape and dtype.

        Raises:
            ValueError: They are none.
        """
        try:
            dtype = parse_dtype(self.dtype)
            check_shape(tuple(self.shape), dtype.itemsize)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.path}: shape or dtype: {error}") from error
        return tuple(self.shape), dtype


class ListedArray(LinkedArray):
    """A zarr2 array that an index also describes; both must agree.

    Args:
        files: The files of its checkpoint.
        name: Its directory there.
        layout: Its shape and dtype, from the index.
        index: The index, for errors.
    """

    def __init__(
        self, files: InnerFiles, name: str, layout: tuple[Shape, DType], index: Path
    ) -> None:
        super().__init__(files, name)
        self._expected = layout
        self._index = index

    @override
    def find(self, key: str) -> Value | None:
        """Return a document or chunk, or where it is; None if there is none.

        Raises:
            FormatError: The array's own document is not what the index says.
        """
        value = super().find(key)
        if key != ZARR2_DOCUMENT or not isinstance(value, Extent):
            return value
        document = read_value(value)
        file = self._directory / key
        layout = parse_array(document, zarr_format=2, where=str(file))
        if (layout.shape, layout.dtype) != self._expected:
            shape, dtype = self._expected
            raise FormatError(
                f"{file}: the array has shape {list(layout.shape)} and dtype {layout.dtype}, its "
                f"entry in {self._index} {list(shape)} and {dtype}. One of the two is damaged, "
                "or of another save."
            )
        return document


def key_paths(names: Sequence[NamePath], *, infer_lists: bool) -> list[KeyPath]:
    """Return the tree paths of leaves.

    Args:
        names: Their names.
        infer_lists: Whether a level whose names are 0, 1, ... is a list, else a dict.

    Raises:
        ValueError: Two leaves have one name, or one is where another has its parts.
    """
    children: dict[NamePath, set[str]] = {}
    for path in names:
        for depth in range(len(path)):
            children.setdefault(path[:depth], set()).add(path[depth])
    leaves: set[NamePath] = set()
    for path in names:
        if path in leaves:
            raise ValueError(
                f"two leaves are stored as {format_path(path)}; the one written last has replaced "
                "the other, and it is unknown which one"
            )
        if path in children:
            raise ValueError(f"{format_path(path)} is a leaf and has leaves below it")
        leaves.add(path)
    lists = {at for at, found in children.items() if infer_lists and _is_list(found)}
    return [
        tuple(
            SequenceKey(int(name)) if path[:depth] in lists else DictKey(name)
            for depth, name in enumerate(path)
        )
        for path in names
    ]


def _is_list(names: set[str]) -> bool:
    return names == set(map(str, range(len(names))))


def in_tree_order(paths: Iterable[KeyPath]) -> list[int]:
    """Return the positions of leaves in the order of JAX's flattening."""
    numbered = [(tuple(map(_sort_key, path)), i) for i, path in enumerate(paths)]
    return [i for _, i in sorted(numbered)]


def _sort_key(key: object) -> tuple[int, str]:
    return (int(key_name(key)), "") if is_sequence_key(key) else (0, key_name(key))


def listed_arrays(
    root: Path, entries: Mapping[str, ArrayEntry], where: Path
) -> dict[str, ListedArray]:
    """Return the arrays of an index by storage name.

    Args:
        root: The checkpoint's directory.
        entries: Entries of the index by storage name.
        where: The index, for errors.

    Raises:
        FormatError: An entry has a shape or dtype that is none.
    """
    arrays: dict[str, ListedArray] = {}
    files = InnerFiles(root)
    for name, entry in entries.items():
        try:
            arrays[name] = ListedArray(files, "/".join(entry.parts()), entry.layout(), where)
        except ValueError as error:
            raise FormatError(f"{where}: {error}. The file is damaged.") from error
    return arrays
