"""Sizes in a checkpoint that cannot be are refused before memory is taken for them."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from crc32c import crc32c

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.layout import MANIFEST, OCDBT_MANIFEST, TREE_METADATA, Extent, Value
from orbit_ckpt._src.storage.manifest import Manifest
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.ocdbt_decode import Child, DecodeError, decode_node
from orbit_ckpt._src.storage.ocdbt_encode import (
    NODE_MAGIC,
    NodeReference,
    encode_interior,
    encode_leaf,
    encode_manifest,
    interior_reference,
    leaf_reference,
)
from orbit_ckpt._src.storage.value_write import DatabaseWriter
from orbit_ckpt.errors import CheckpointError, CorruptionError, FormatError, StorageError
from tests.support import checkpointer

Index = dict[str, Value]

_LARGE = 2**40
_MOST_MB = 256


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint without a manifest, with the array `a` in one chunk as it is."""
    path = tmp_path / "c"
    tree = {"a": np.zeros(50_000), "b": np.arange(3)}
    checkpointer(use_zarr3=False, use_compression=False).save(path, tree)
    (path / MANIFEST).unlink()
    return path


def rewrite(path: Path, change: Callable[[Index], object]) -> None:
    """Change the keys and values of a checkpoint's database."""
    index: Index = {
        key: value
        if isinstance(value, bytes)
        else Extent(os.path.relpath(value.file, path), value.offset, value.length)
        for key, value in read_index(path).items()
    }
    change(index)
    (path / OCDBT_MANIFEST).unlink()
    writer = DatabaseWriter(path, data_file_bytes=None)
    writer.refer(index, Manifest())
    writer.close()


def document(**fields: Any) -> Callable[[Index], None]:
    """Return what changes fields of the metadata document of `a`."""

    def change(index: Index) -> None:
        data = index["a/.zarray"]
        assert isinstance(data, bytes)
        index["a/.zarray"] = json.dumps({**json.loads(data), **fields}).encode()

    return change


def place(key: str, **fields: int) -> Callable[[Index], None]:
    """Return what changes where a value is."""

    def change(index: Index) -> None:
        chunk = index["a/0"]
        assert isinstance(chunk, Extent)
        found = {"offset": chunk.offset, "length": chunk.length, **fields}
        index[key] = Extent(chunk.file, found["offset"], found["length"])

    return change


def large(**fields: Any) -> Callable[[Index], None]:
    return document(shape=[_LARGE], chunks=[_LARGE], **fields)


def large_and_long(index: Index) -> None:
    large()(index)
    place("a/0", length=8 * _LARGE)(index)


def absent(index: Index) -> None:
    large()(index)
    del index["a/0"]


BOMBS: dict[str, tuple[Callable[[Index], object], type[Exception]]] = {
    "an array larger than its chunk": (large(), CorruptionError),
    "a chunk larger than its file": (large_and_long, CorruptionError),
    "zstd": (large(compressor={"id": "zstd", "level": 1}), CorruptionError),
    "gzip": (large(compressor={"id": "gzip", "level": 1}), CorruptionError),
    "blosc": (large(compressor={"id": "blosc", "cname": "lz4"}), CorruptionError),
    "many chunks": (document(shape=[_LARGE], chunks=[1]), FormatError),
    "a number beyond 64 bits": (document(compressor={"id": 2**64}), FormatError),
    "70 dimensions": (document(shape=[1] * 70, chunks=[1] * 70), FormatError),
    "another separator": (document(dimension_separator="/../"), FormatError),
    "a long value": (place("a/0", length=2**60), CorruptionError),
    "a value far away": (place("a/0", offset=2**62), CorruptionError),
    "a long document": (place("a/.zarray", length=2**60), CheckpointError),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_size_that_cannot_be_takes_no_memory(checkpoint: Path, kind: str) -> None:
    change, error = BOMBS[kind]
    rewrite(checkpoint, change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(error):
        ocp.load(checkpoint)
    with pytest.raises(CheckpointError):
        np.asarray(ocp.load(checkpoint, lazy=True)["a"])
    assert not ocp.verify(checkpoint).is_intact
    try:
        ocp.plan(checkpoint)
        ocp.metadata(checkpoint)
    except CheckpointError:
        pass
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) >> 10 < _MOST_MB


def test_zeros_that_were_not_stored_are_refused_where_memory_does_not_suffice(
    checkpoint: Path,
) -> None:
    rewrite(checkpoint, absent)
    file = checkpoint / TREE_METADATA
    fields = json.loads(file.read_text())
    file.write_text(json.dumps({**fields, "store_array_data_equal_to_fill_value": False}))
    with pytest.raises(StorageError, match="bytes of memory are needed"):
        ocp.load(checkpoint)


def framed(content: bytes) -> bytes:
    """Return a node, whatever is in it."""
    compressed = zstandard.ZstdCompressor().compress(content)
    length = 12 + 2 + len(compressed) + 4
    data = NODE_MAGIC.to_bytes(4) + length.to_bytes(8, "little") + b"\0\1" + compressed
    return data + crc32c(data).to_bytes(4, "little")


def varint(number: int) -> bytes:
    """Return a number in groups of 7 bits."""
    data = b""
    while number >= 0x80:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


@pytest.mark.parametrize("count", [1, 2**31, 2**63])
def test_a_node_that_announces_more_than_it_has_is_damaged(count: int) -> None:
    number = varint(count)
    root = Child(Extent("x", 0, 0), "/", b"")
    for content in (b"\0\0" + number, b"\0" + number, b"\1\0" + number, b"\0\0" + number * 4):
        with pytest.raises(ValueError):  # noqa: PT011 - of any kind
            decode_node(framed(content), root)


def test_a_node_that_decompresses_to_anything_is_damaged() -> None:
    root = Child(Extent("x", 0, 0), "/", b"")
    with pytest.raises(DecodeError, match="decompresses to more"):
        decode_node(framed(bytes(300 << 20)), root)


def test_keys_that_share_more_than_memory_has_are_damage() -> None:
    length, count = varint(100_000), 3000
    columns = [varint(count), length * (count - 1), length, b"\1" * (count - 1)]
    suffixes = bytes(100_000 + count - 1)
    with pytest.raises(DecodeError, match="share more"):
        decode_node(
            framed(b"".join([b"\0\0", *columns, suffixes])), Child(Extent("x", 0, 0), "/", b"")
        )


def test_nodes_that_lead_to_one_another_end(tmp_path: Path) -> None:
    path = tmp_path / "c"
    (path / "d").mkdir(parents=True)
    leaf = encode_leaf([(b"a", b"b")])
    below = leaf_reference([(b"a", b"b")], Extent("d/x", 0, len(leaf)))
    (path / "d" / "x").write_bytes(leaf)
    root = _root_of(path, [below] * 50, "d/y")
    _write_manifest(path, root)
    with pytest.raises(CorruptionError, match="lead to one another"):
        read_index(path)
    itself = encode_interior([root])
    place = Extent("d/z", 0, len(itself))
    again = NodeReference(place, 1, b"a", 1, 1, 1)
    itself = encode_interior([again])
    (path / "d" / "z").write_bytes(itself)
    _write_manifest(path, NodeReference(Extent("d/z", 0, len(itself)), 1, b"a", 1, 1, 1))
    with pytest.raises(CorruptionError):
        read_index(path)


def _root_of(path: Path, children: list[NodeReference], file: str) -> NodeReference:
    data = encode_interior(children)
    (path / file).write_bytes(data)
    return interior_reference(children, Extent(file, 0, len(data)))


def _write_manifest(path: Path, root: NodeReference) -> None:
    data = encode_manifest(root, uuid=bytes(16), commit_time_ns=0)
    (path / OCDBT_MANIFEST).write_bytes(data)
