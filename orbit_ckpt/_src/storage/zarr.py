"""zarr metadata documents: built for our arrays, parsed for any writer's.

We write arrays as `bytes`, optionally `blosc` or `zstd`, then `crc32c` (zarr3), or as zarr2 for
older readers. Documents of other writers may name any codecs; TensorStore's drivers handle those
that this module cannot decode itself.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType, parse_dtype
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.guards import is_list
from orbit_ckpt._src.storage.blosc import can_encode
from orbit_ckpt._src.storage.layout import ZARR2_DOCUMENT, ZARR3_DOCUMENT, join_key
from orbit_ckpt._src.unique_keys import parse_unique

_MAX_RATIOS: Mapping[str, int] = {"gzip": 1032, "zlib": 1032, "zstd": 1 << 16, "bz2": 1 << 21}
_MAX_RATIO = 1 << 17
_SLACK_BYTES = 1 << 16
"""Above what compressors make of a byte: a larger output cannot come from a chunk."""

MIN_COMPRESSED_BYTES = 16 * 1024
"""Smaller arrays are stored uncompressed: zstd saves less on them than a leaf costs in metadata."""

BLOSC, _ZSTD = "blosc", "zstd"
_SHUFFLES = frozenset({"shuffle", "noshuffle"})
_ZSTD_LEVEL = 1
_MAX_CHUNKS = 2**24
"""Maximum chunks of an array, all of which are looked up one by one."""

MAX_DIMENSIONS = 64
"""numpy's limit."""

_MAX_ELEMENTS = 2**58
"""More elements exceed any machine's memory, whatever their dtype."""


class ZarrArray(Struct, frozen=True):
    """How one array is stored.

    Attributes:
        zarr_format: 2 or 3.
        shape: Shape of the array.
        chunk_shape: Shape of every chunk; at the array's edge chunks are still full.
        dtype: The stored dtype.
        compression: Name of the compressor, None if the bytes are uncompressed.
        checksum: Whether every chunk ends in its crc32c.
        is_direct: Whether a chunk is its elements in C order, little-endian, optionally compressed
            with zstd, or with Blosc as we do, and followed by a checksum, so that it is read
            without TensorStore.
        separator: Separator of the indices in a zarr2 chunk key.
        is_sharded: Whether a chunk consists of smaller ones, not all of which need exist.
        has_inner_chunks: Whether a chunk consists of several smaller ones, each read alone.
        has_frames: Whether a chunk is a Blosc frame, up to its checksum.
        metadata_key: File name of the metadata document, None for the standard one of its format.
    """

    zarr_format: int
    shape: Shape
    chunk_shape: Shape
    dtype: DType
    compression: str | None
    checksum: bool
    is_direct: bool
    separator: str = "."
    is_sharded: bool = False
    has_inner_chunks: bool = False
    has_frames: bool = False
    metadata_key: str | None = None

    @property
    def driver(self) -> str:
        """TensorStore's name for the format."""
        return "zarr" if self.zarr_format == 2 else "zarr3"

    @property
    def document_name(self) -> str:
        """File name of the metadata document."""
        return self.metadata_key or document_name(self.zarr_format)

    @property
    def is_plain(self) -> bool:
        """Whether any part of a chunk can be read by itself: it consists of its elements only."""
        return self.is_direct and self.compression is None and not self.checksum

    @property
    def chunk_nbytes(self) -> int:
        """Size of one chunk's elements in bytes."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    def chunk_key(self, name: str, index: Shape) -> str:
        """Return the storage key of one chunk of the array called `name`."""
        return join_key(name, _chunk_suffix(index, self.zarr_format, self.separator))


def most_decoded(layout: ZarrArray, nbytes: int) -> int:
    """Return the maximum decoded size of a stored chunk of a size."""
    if layout.is_sharded:  # chunks of zeros may be omitted
        return layout.chunk_nbytes
    if layout.compression is None:
        return nbytes
    return _SLACK_BYTES + _MAX_RATIOS.get(layout.compression, _MAX_RATIO) * nbytes


@functools.lru_cache(maxsize=4096)
def _chunk_suffix(index: Shape, zarr_format: int, separator: str) -> str:
    if zarr_format == 3:
        return "/".join(["c", *map(str, index)])
    return separator.join(map(str, index)) or "0"


def document_name(zarr_format: int) -> str:
    """Return the file name of the metadata document of a zarr format."""
    return ZARR2_DOCUMENT if zarr_format == 2 else ZARR3_DOCUMENT


@functools.lru_cache(maxsize=4096)
def describe_array(
    shape: Shape, chunk_shape: Shape, dtype: DType, *, zarr_format: int, compress: bool
) -> tuple[ZarrArray, bytes]:
    """Return the layout of a new array, and its metadata document.

    Args:
        shape: Shape of the array.
        chunk_shape: Shape of its chunks, no dimension 0.
        dtype: The stored dtype, see `arrays.dtypes.stored_dtype`.
        zarr_format: 2 or 3.
        compress: Whether to compress; small arrays never are.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    compression = None
    if compress and nbytes >= MIN_COMPRESSED_BYTES:
        chunk_nbytes = math.prod(chunk_shape) * dtype.itemsize
        has_frames = zarr_format == 3 and can_encode(chunk_nbytes, dtype.itemsize)
        compression = BLOSC if has_frames else _ZSTD
    array = ZarrArray(
        zarr_format=zarr_format,
        shape=shape,
        chunk_shape=chunk_shape,
        dtype=dtype,
        compression=compression,
        checksum=zarr_format == 3,
        is_direct=True,
        has_frames=compression == BLOSC,
    )
    build = _zarr2_document if zarr_format == 2 else _zarr3_document
    return array, json.dumps(build(array), separators=(",", ":")).encode()


@functools.lru_cache(maxsize=4096)
def plain_array(shape: Shape, chunk_shape: Shape, dtype: DType) -> tuple[ZarrArray, bytes]:
    """Return the uncompressed zarr2 layout of an array of any storable dtype, and its document.

    Args:
        shape: Shape of the array.
        chunk_shape: Shape of its chunks, no dimension 0.
        dtype: The dtype of its elements, which are little-endian.
    """
    array = ZarrArray(2, shape, chunk_shape, dtype, None, checksum=False, is_direct=True)
    return array, json.dumps(_zarr2_document(array), separators=(",", ":")).encode()


def parse_array(document: bytes, *, zarr_format: int, where: str) -> ZarrArray:
    """Parse the metadata document of an array.

    Raises:
        FormatError: The document is not JSON, lacks a field, or has one of a wrong type.
    """
    try:
        fields = cast(Mapping[str, Any], parse_unique(document))
        return _parse_zarr2(fields) if zarr_format == 2 else _parse_zarr3(fields)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{where}: not a zarr{zarr_format} metadata document "
            f"({type(error).__name__}: {error}): {document[:80]!r}"
        ) from error


def _zarr2_document(array: ZarrArray) -> dict[str, object]:
    dtype = array.dtype
    return {
        "chunks": array.chunk_shape,
        "compressor": {"id": _ZSTD, "level": _ZSTD_LEVEL} if array.compression else None,
        "dimension_separator": array.separator,
        # numpy has no type strings for the ml_dtypes; TensorStore accepts their names
        "dtype": dtype.str if dtype.type.__module__ == "numpy" else dtype.name,
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": array.shape,
        "zarr_format": 2,
    }


def _zarr3_document(array: ZarrArray) -> dict[str, object]:
    endian = {"configuration": {"endian": "little"}} if array.dtype.itemsize > 1 else {}
    codecs: list[dict[str, object]] = [{"name": "bytes", **endian}]
    if array.compression == BLOSC:
        codecs.append({"name": BLOSC, "configuration": _blosc_configuration(array.dtype)})
    elif array.compression:
        codecs.append({"name": _ZSTD, "configuration": {"level": _ZSTD_LEVEL, "checksum": False}})
    codecs.append({"name": "crc32c"})
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": array.shape,
        "data_type": array.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array.chunk_shape}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": _fill_value(array.dtype),
        "codecs": codecs,
    }


def _blosc_configuration(dtype: DType) -> dict[str, object]:
    # blocks of size 0 are of the writer's choice
    shuffle = {"shuffle": "shuffle", "typesize": dtype.itemsize, "blocksize": 0}
    return {"cname": _ZSTD, "clevel": _ZSTD_LEVEL, **shuffle}


def _fill_value(dtype: DType) -> object:
    if dtype.kind == "b":
        return False
    if dtype.kind == "c":
        return [0.0, 0.0]
    return 0 if "int" in dtype.name else 0.0


def _parse_zarr2(fields: Mapping[str, Any]) -> ZarrArray:
    shape, chunks = _shape(fields["shape"]), _shape(fields["chunks"])
    compressor: Mapping[str, Any] | None = fields.get("compressor")
    dtype_name = str(fields["dtype"])
    separator = str(fields.get("dimension_separator", "."))
    _check_grid(shape, chunks)
    if separator not in (".", "/"):
        raise ValueError(f"its dimension_separator is {separator[:80]!r}")
    return ZarrArray(
        zarr_format=2,
        shape=shape,
        chunk_shape=chunks,
        dtype=parse_dtype(dtype_name).newbyteorder("<"),  # TensorStore swaps big-endian bytes
        compression=str(compressor["id"]) if compressor else None,
        checksum=False,
        is_direct=(
            (not compressor or compressor["id"] == "zstd")
            and not fields.get("filters")
            and fields.get("order", "C") == "C"
            and not dtype_name.startswith(">")
        ),
        separator=separator,
        has_frames=bool(compressor) and compressor["id"] == BLOSC and not fields.get("filters"),
    )


def _parse_zarr3(fields: Mapping[str, Any]) -> ZarrArray:
    if fields["node_type"] != "array" or fields["chunk_grid"]["name"] != "regular":
        raise ValueError("not an array on a regular chunk grid")
    shape = _shape(fields["shape"])
    chunks = _shape(fields["chunk_grid"]["configuration"]["chunk_shape"])
    codecs: Sequence[Mapping[str, Any]] = fields["codecs"]
    names = [str(codec["name"]) for codec in codecs]
    others = codecs[1 : len(codecs) - (names[-1] == "crc32c")]
    encoding: Mapping[str, Any] = fields["chunk_key_encoding"]
    endian = codecs[0].get("configuration", {}).get("endian", "little")
    inner = [c["name"] for c in _inner_codecs(codecs)]
    _check_grid(shape, chunks)
    return ZarrArray(
        zarr_format=3,
        shape=shape,
        chunk_shape=chunks,
        dtype=parse_dtype(str(fields["data_type"])),
        compression=next((n for n in (*names, *inner) if n in _COMPRESSORS), None),
        checksum=names[-1] == "crc32c",
        is_direct=(
            names[0] == "bytes"
            and len(others) <= 1
            and all(map(_is_decoded_here, others))
            and endian == "little"
            and encoding == {"name": "default"}
        ),
        is_sharded="sharding_indexed" in names,
        has_inner_chunks=any(
            codec["name"] == "sharding_indexed"
            and tuple(codec["configuration"]["chunk_shape"]) != chunks
            for codec in codecs
        ),
        has_frames=names[: len(others) + 1][-2:] == ["bytes", BLOSC],
    )


_COMPRESSORS = frozenset({_ZSTD, "gzip", BLOSC})


def _is_decoded_here(codec: Mapping[str, Any]) -> bool:
    if codec["name"] != BLOSC:
        return codec["name"] == _ZSTD
    how = codec["configuration"]
    return how["cname"] == _ZSTD and how["shuffle"] in _SHUFFLES


def _inner_codecs(codecs: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    for codec in codecs:
        if codec["name"] == "sharding_indexed":
            return codec["configuration"]["codecs"]
    return ()


def _shape(value: object) -> Shape:
    if not is_list(value):
        raise TypeError(f"expected a list of lengths, found {value!r}")
    lengths = tuple(n for n in value if type(n) is int and n >= 0)
    if len(lengths) < len(value):
        raise ValueError(f"expected a list of lengths, found {value!r}")
    return lengths


def _check_grid(shape: Shape, chunks: Shape) -> None:
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{len(shape)} dimensions, of at most {MAX_DIMENSIONS}")
    if len(shape) != len(chunks) or any(n < 1 for n in chunks):
        raise ValueError(f"chunks {chunks} do not fit shape {shape}")
    if any(math.prod(filter(None, sizes)) > _MAX_ELEMENTS for sizes in (shape, chunks)):
        raise ValueError(f"shape {shape} or chunks {chunks} have too many elements")
    if math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True)) > _MAX_CHUNKS:
        raise ValueError(f"shape {shape} in chunks {chunks} has more than {_MAX_CHUNKS} chunks")
