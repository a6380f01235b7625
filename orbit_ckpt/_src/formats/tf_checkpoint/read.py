"""Read TensorFlow's checkpoints (TensorBundle) under T5X's names, without TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
from msgspec.structs import replace
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import DType, HostArray, as_dtype
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import CheckpointNotFoundError, CorruptionError, FormatError
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.formats.flax_msgpack.tree import ArrayNode, LinkedNode, stored_tree
from orbit_ckpt._src.formats.stored_tree import StoredTree
from orbit_ckpt._src.formats.t5x.read import TF_STATE
from orbit_ckpt._src.formats.tf_checkpoint.index import (
    MAGIC,
    SUFFIX,
    IndexEntry,
    mask_checksum,
    read_index,
)
from orbit_ckpt._src.formats.tf_checkpoint.names import translate_t5
from orbit_ckpt._src.guards import is_json_object
from orbit_ckpt._src.storage.foreign import RawArray
from orbit_ckpt._src.storage.inner_path import InnerFiles, inner_file
from orbit_ckpt._src.storage.layout import AGGREGATE, ZARR2_DOCUMENT, Value
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import file_names, file_size, read_extent
from orbit_ckpt._src.storage.value_read import open_value

Translate = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_LATEST = re.compile(rb'model_checkpoint_path: *"([^"\\]*)"')
_STATE_BYTES = 1 << 16
_PIECE_BYTES = 1 << 22


class TFVariable:
    """A variable of a TensorFlow checkpoint, as renaming rules receive it.

    Attributes:
        shape: Its shape.
        dtype: Its dtype; None if it does not hold numbers, but strings for example.
    """

    def __init__(self, name: str, entry: IndexEntry) -> None:
        self.shape: Shape = entry.shape
        self.dtype: DType | None = entry.dtype
        self._name = name
        self._entry = entry

    def get(self) -> HostArray:
        """Read its value.

        Raises:
            CorruptionError: It is missing or damaged.
            FormatError: It is not an array of numbers.
        """
        if self.dtype is None:
            raise FormatError(f"{self._name} is no array of numbers")
        data = b"".join(self.pieces())
        return np.frombuffer(data, self.dtype.newbyteorder("<")).reshape(self.shape)

    def astype(self, dtype: object) -> HostArray:
        """Read its value and cast it."""
        return self.get().astype(as_dtype(dtype))

    def array(self) -> RawArray:
        """Return it as an array that is read on demand."""
        if self.dtype is None:
            raise FormatError(
                f"{self._name} is no array of numbers. Leave it out: give a translator whose rule "
                "for it returns None as its name."
            )
        return _CheckedArray(self, self.dtype, self._entry)

    def pieces(self) -> Sequence[bytes]:
        """Check its bytes; return them in pieces."""
        pieces: list[bytes] = []
        self.check(pieces.append)
        return pieces

    def check(self, take: Callable[[bytes], object] | None = None) -> None:
        """Read its bytes and compare them with their checksum.

        Args:
            take: Called with every piece.

        Raises:
            CorruptionError: It is missing or damaged.
        """
        place = self._entry.extent
        crc, missing = 0, place.length
        problem = None
        try:
            read = open_value(place)
            while missing and (piece := read(min(missing, _PIECE_BYTES))):
                crc = crc32c(piece, crc)
                missing -= len(piece)
                if take is not None:
                    take(piece)
        except FileNotFoundError:
            problem = "the file is missing"
        if problem is None and missing:
            problem = f"the file ends {missing} bytes before it does"
        if problem is None and mask_checksum(crc) != self._entry.checksum:
            problem = "its checksum does not match"
        if problem is not None:
            raise CorruptionError(
                f"{self._name}: {place.file}, bytes {place.offset} to "
                f"{place.offset + place.length}: {problem}. Copy the checkpoint again.",
                path=self._name,
                file=place.file,
            )

    def __repr__(self) -> str:
        return f"TFVariable(shape={self.shape}, dtype={self.dtype})"


class _CheckedArray(RawArray):
    """An array that is compared with its checksum before its first read."""

    def __init__(self, variable: TFVariable, dtype: DType, entry: IndexEntry) -> None:
        super().__init__(entry.shape, dtype.newbyteorder("<"), entry.extent)
        self._variable = variable
        self._is_checked = False

    @override
    def find(self, key: str) -> Value | None:
        value = super().find(key)
        if key != ZARR2_DOCUMENT and value is not None and not self._is_checked:
            self._variable.check()
            self._is_checked = True
        return value


class TensorFlowFormat(Format):
    """Reads TensorFlow's checkpoints; see `Format`.

    Args:
        translate: Converts variables by name to variables or arrays by new name, the keys of which
            are joined by slashes; the `apply` of a `CheckpointTranslator`, for example. The default
            translates T5's names to T5X's. None keeps the names.
    """

    name = "TensorFlow"
    extra = None

    def __init__(self, *, translate: Translate | None = translate_t5) -> None:
        self._translate = translate

    @override
    def sniff(self, path: Path) -> str | None:
        file = path / AGGREGATE if path.is_dir() else path
        if path.is_dir() and not file.is_file():
            has_one = len(_indices(path)) == 1
            return None if has_one else f"no file {AGGREGATE} and not just one *{SUFFIX} in it"
        is_state = read_extent(str(file), 0, len(TF_STATE)) == TF_STATE
        is_index = not is_state and file.name.endswith(SUFFIX) and _ends_like_index(file)
        return None if is_state or is_index else f"{file.name} is no state file and no index of it"

    @override
    def open(self, path: Path) -> StoredTree:
        """Open a checkpoint; its path may also be that of the index without the suffix."""
        index = _find_index(resolve_path(path))
        entries = read_index(index)
        files = InnerFiles(index.parent)
        for file in {entry.extent.file for entry in entries.values()}:
            files.file(Path(file).name)
        variables: Mapping[str, Any] = {
            name: TFVariable(name, entry) for name, entry in entries.items()
        }
        if self._translate is not None:
            try:
                variables = self._translate(variables)
            except (ValueError, LookupError) as error:
                if isinstance(error, FormatError | CorruptionError):
                    raise
                raise FormatError(
                    f"{index}: {str(error)[:2000]}. TensorFlowFormat(translate=None) reads "
                    "variables under their own names."
                ) from error
        return replace(stored_tree(_tree(variables, index), path, index), has_checksums=True)


FORMAT = TensorFlowFormat()


def _indices(directory: Path) -> list[str]:
    """Return the names of the indices in a directory."""
    return [name for name in file_names(directory) if name.endswith(SUFFIX)]


def _ends_like_index(file: Path) -> bool:
    size = file_size(file)
    return read_extent(str(file), max(0, size - len(MAGIC)), len(MAGIC)) == MAGIC


def _find_index(path: Path) -> Path:
    """Return the index of a checkpoint.

    Raises:
        CheckpointNotFoundError: The checkpoint has no index.
    """
    index = path.with_name(path.name + SUFFIX)
    if not path.is_dir() and index.is_file():
        return index
    if path.name.endswith(SUFFIX) and path.is_file():
        return path
    state = path / AGGREGATE if path.is_dir() else path
    index = None
    if state.is_file():
        match = _LATEST.search(read_extent(str(state), 0, _STATE_BYTES))
        # it may be an absolute path of the machine that saved the checkpoint
        name = PurePosixPath(match[1].decode(errors="replace")).name if match else ""
        index = inner_file(state.parent, name + SUFFIX) if name else None
    elif path.is_dir():
        found = _indices(path)
        index = inner_file(path, found[0]) if found else None
    if index is None or not index.is_file():
        raise CheckpointNotFoundError(
            f"No checkpoint of TensorFlow at {path}: there is no {index or '*' + SUFFIX}."
        )
    return index


def _tree(variables: Mapping[str, Any], index: Path) -> object:
    """Return variables as nested dicts."""
    root: dict[str, Any] = {}
    for name, value in variables.items():
        *parents, last = name.split("/")
        node = root
        for key in parents:
            node = node.setdefault(key, {})
            if not is_json_object(node):
                raise FormatError(f"{index}: {name!r} is below another variable")
        if last in node:
            raise FormatError(f"{index}: {name!r} is above another variable, or is there twice")
        node[last] = _leaf(value)
    return root


def _leaf(value: object) -> object:
    if isinstance(value, TFVariable):
        return LinkedNode(value.array())
    if isinstance(value, np.ndarray | np.generic):
        host: HostArray = np.asarray(cast(HostArray, value))
        data = host.astype(host.dtype.newbyteorder("<")).tobytes()
        return ArrayNode(host.shape, host.dtype, data, is_scalar=not host.shape)
    return value
