"""TensorStore specs, which T5X puts into its msgpack file in place of arrays."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import DType, as_dtype, parse_dtype
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import CorruptionError, FormatError
from orbit_ckpt._src.formats.t5x.chunks import document_of
from orbit_ckpt._src.guards import is_json_object, is_list_or_tuple, is_mapping
from orbit_ckpt._src.storage.foreign import ForeignArray, LinkedArray
from orbit_ckpt._src.storage.inner_path import InnerFiles, is_inner_name
from orbit_ckpt._src.storage.layout import ZARR2_DOCUMENT, Value
from orbit_ckpt._src.storage.ocdbt import Json
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.storage.value_read import read_value
from orbit_ckpt._src.storage.zarr import ZarrArray, parse_array

Uint16 = Literal["error", "as_bfloat16", "as_uint16"]
"""How to read uint16 arrays: not at all, as T5X's bfloat16 before version 3, or as uint16."""

VERSION = 3
"""The latest version of the format."""

_KEYS = frozenset({"driver", "kvstore", "metadata"})
_LOCAL = ("file", "gfile", "gcs")
_MAX_DOCUMENT_BYTES = 1 << 20
_MAX_DIMENSIONS = 32
_MAX_RATIO = 1032
"""Upper bound of gzip's compression ratio."""

_SLACK_BYTES = 1 << 20
_DEFLATED = frozenset({None, "gzip", "zlib"})


def is_spec(node: object) -> bool:
    """Return whether a node of a tree is a spec, by T5X's rule."""
    return is_mapping(node) and node.keys() >= _KEYS


class Spec(Struct, frozen=True):
    """A parsed spec of an array; a field is None or UNSET if the spec lacks it.

    Attributes:
        root: The directory of the checkpoint.
        name: Path of the array's directory, relative to `root`.
        shape: Its shape.
        dtype: Its stored dtype.
        chunks: Shape of its chunks.
        compressor: The compressor in zarr's form; None if chunks are not compressed.
    """

    root: Path
    name: str
    shape: Shape | None
    dtype: DType | None
    chunks: Shape | None
    compressor: Mapping[str, object] | UnsetType | None

    @property
    def is_complete(self) -> bool:
        """Whether it has all fields of the array's own document."""
        is_shaped = self.shape is not None and self.chunks is not None
        return is_shaped and self.dtype is not None and self.compressor is not UNSET

    @property
    def directory(self) -> Path:
        """The array's directory."""
        return self.root / self.name


def parse_spec(fields: Mapping[str, Any], directory: Path) -> Spec:
    """Parse a spec.

    Args:
        fields: The fields of the spec.
        directory: The directory of the checkpoint, to which its path is relative.

    Raises:
        ValueError: T5X does not write such a spec, or its path leads out of the directory.
    """
    if fields["driver"] != "zarr":
        raise ValueError(f"it is an array of the driver {fields['driver']!r}, not zarr")
    metadata = fields["metadata"]
    if not is_json_object(metadata):
        raise ValueError(f"its metadata are {str(metadata)[:80]}")
    name = fields.get("dtype", metadata.get("dtype"))
    compressor = metadata.get("compressor", UNSET)
    if not (compressor is None or isinstance(compressor, UnsetType) or is_json_object(compressor)):
        raise ValueError(f"its compressor is {str(compressor)[:80]}")
    return Spec(
        directory,
        _relative_path(fields),
        _lengths(metadata.get("shape"), "shape"),
        None if name is None else parse_dtype(_text(name)).newbyteorder("<"),
        _lengths(metadata.get("chunks"), "chunks"),
        compressor,
    )


def _relative_path(fields: Mapping[str, Any]) -> str:
    """Return the path of an array's directory, relative to that of the checkpoint.

    An absolute path is one of the machine that saved the checkpoint; its last part is the name of
    the array's directory everywhere.
    """
    found = fields["kvstore"]
    kvstore = found if is_json_object(found) else {}
    driver = kvstore.get("driver")
    if driver not in _LOCAL:
        raise ValueError(f"Unsupported TensoreStore driver. Got {driver}.")  # T5X's spelling
    path = fields.get("path", kvstore.get("path"))
    if path is None:
        raise ValueError(
            'Incorrect TensorStore Spec. Expects "path" to be a key of spec or `spec["kvstore"]`. '
            f"Got {str(fields)[:400]}"
        )
    text = _text(path)
    parts = PurePosixPath(text).parts
    if text.startswith("/"):
        parts = parts[-1:] if len(parts) > 1 else ()
    name = "/".join(parts)
    if "\\" in name or not is_inner_name(name):
        raise ValueError(f"its path {text[:200]!r} does not lead to a directory in the checkpoint")
    return name


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:80]} is where a string should be")
    return value


def _lengths(value: object, what: str) -> Shape | None:
    if value is None:
        return None
    lengths = value if is_list_or_tuple(value) else [None]
    known = tuple(n for n in lengths if type(n) is int and 0 <= n < 2**63)
    if len(known) < len(lengths) or len(lengths) > _MAX_DIMENSIONS:
        raise ValueError(f"its {what} are {str(lengths)[:80]}")
    return known


class SpecArray(ForeignArray):
    """An array that T5X's msgpack file refers to; see `ForeignArray`.

    Its `.zarray` describes it, as in T5X. Some tools do not copy such hidden files; without it, the
    spec describes the array.

    Args:
        spec: Its spec.
        where: The leaf, for messages.
        uint16: How to read it if its dtype is uint16.
    """

    has_object_per_value = True

    def __init__(self, spec: Spec, where: str, uint16: Uint16) -> None:
        self._spec = spec
        self._where = where
        self._is_bfloat16 = uint16 == "as_bfloat16" and spec.dtype == as_dtype("uint16")
        self._inner = InnerFiles(spec.root)
        self._files = LinkedArray(self._inner, spec.name)
        self._document: bytes | None = None

    @override
    def find(self, key: str) -> Value | None:
        if key != ZARR2_DOCUMENT:
            return self._files.find(key)
        if self._document is None:
            try:
                self._document = self._read_document()
            except CorruptionError:
                raise
            except (ValueError, TypeError, LookupError, RecursionError) as error:
                raise FormatError(
                    f"{self._where}: {self._spec.directory}: {error}. The checkpoint is damaged, "
                    "or files of several are mixed; copy it again."
                ) from error
        return self._document

    @override
    def length(self, key: str) -> int | None:
        return super().length(key) if key == ZARR2_DOCUMENT else self._files.length(key)

    @override
    def spec(self) -> Json:
        return self._files.spec()

    @override
    def keys(self) -> Sequence[str]:
        return self._files.keys()

    def _read_document(self) -> bytes:
        """Read and check `.zarray`.

        Raises:
            ValueError: It is damaged, or contradicts the spec.
        """
        spec = self._spec
        if isinstance(spec.root, StorePath):
            return self._checked(self._read_object(spec))
        is_partial_copy = not spec.directory.is_dir()
        if is_partial_copy and not spec.is_complete:
            raise CorruptionError(
                f"{self._where}: the array's directory {spec.directory} is missing. Was the "
                "checkpoint copied completely?",
                path=self._where,
                file=str(spec.directory),
            )
        try:
            with open(self._inner.file(f"{spec.name}/{ZARR2_DOCUMENT}"), "rb") as stream:
                data = stream.read(_MAX_DOCUMENT_BYTES)
        except FileNotFoundError:
            data = _document_of(spec)
        checked = self._checked(data)
        if not is_partial_copy:  # else reading reports missing chunks
            self._check_size(parse_array(data, zarr_format=2, where=ZARR2_DOCUMENT))
        return checked

    def _read_object(self, spec: Spec) -> bytes:
        value = self._files.find(ZARR2_DOCUMENT)
        if value is None and not spec.is_complete:
            raise CorruptionError(
                f"{self._where}: {spec.directory}/{ZARR2_DOCUMENT} is missing. Was the "
                "checkpoint copied completely?",
                path=self._where,
                file=str(spec.directory),
            )
        return _document_of(spec) if value is None else read_value(value)[:_MAX_DOCUMENT_BYTES]

    def _checked(self, data: bytes) -> bytes:
        """Return a document that agrees with the spec.

        Raises:
            ValueError: It does not.
        """
        spec = self._spec
        layout = parse_array(data, zarr_format=2, where=ZARR2_DOCUMENT)
        found = (layout.shape, layout.dtype)
        if spec.shape is not None and spec.dtype is not None and found != (spec.shape, spec.dtype):
            raise ValueError(
                f"{ZARR2_DOCUMENT} says {layout.dtype} of shape {layout.shape}, the msgpack file "
                f"{spec.dtype} of shape {spec.shape}"
            )
        if not self._is_bfloat16:
            return data
        return json.dumps({**json.loads(data), "dtype": "bfloat16"}).encode()

    def _check_size(self, layout: ZarrArray) -> None:
        """Check before memory is allocated that the files are large enough for the array."""
        nbytes = math.prod(layout.shape) * layout.dtype.itemsize
        most = max(nbytes, layout.chunk_nbytes)
        if most <= _SLACK_BYTES or layout.compression not in _DEFLATED:
            return
        stored = sum(
            os.stat(self._spec.directory / name).st_size
            for name in self._files.keys()  # noqa: SIM118 - no mapping
        )
        if most > _SLACK_BYTES + _MAX_RATIO * stored:
            raise ValueError(f"an array of {nbytes} bytes cannot be in files of {stored} bytes")


def _document_of(spec: Spec) -> bytes:
    """Return the `.zarray` that a spec describes."""
    shape, dtype, chunks, compressor = spec.shape, spec.dtype, spec.chunks, spec.compressor
    if shape is None or dtype is None or chunks is None or isinstance(compressor, UnsetType):
        raise ValueError(f"{ZARR2_DOCUMENT} is missing, and the msgpack file lacks parts of it")
    return document_of(shape, dtype, chunks, compressor)
