"""Write trees of arrays as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from orbit_ckpt._src.errors import UnsupportedLeafError
from orbit_ckpt._src.formats.array_file import ArrayFile
from orbit_ckpt._src.formats.eformer.records import without_checksums
from orbit_ckpt._src.formats.safetensors.header import (
    DTYPES,
    INDEX,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    METADATA,
    PACKED_BITS,
    SINGLE,
    SUFFIX,
)
from orbit_ckpt._src.formats.writing import (
    ArrayStream,
    WriteRequest,
    named_arrays,
    new_directory,
    new_file,
)
from orbit_ckpt._src.storage.durable import write_file

_ALIGNMENT = 8
_NAMES = {dtype: name for name, dtype in DTYPES.items() if name not in PACKED_BITS}


def write(request: WriteRequest) -> None:
    """Write a tree: into one file if the path ends in `.safetensors`, else into a directory.

    A tensor's name consists of its keys, joined by dots. Numbers become tensors without dimensions;
    None and empty containers are omitted.

    Raises:
        UnsupportedLeafError: The format cannot hold some leaves; nothing was written.
        NameCollisionError: Two leaves would have the same name; nothing was written.
        CheckpointExistsError: The path exists.
        ValueError: The path is that of one file, and a limit on its size is given.
    """
    arrays = named_arrays("safetensors", request.tree, _problem, reserved=METADATA)
    metadata = {name: _text(value) for name, value in without_checksums(request.metadata).items()}
    path = request.path
    if path.name.endswith(SUFFIX):
        if request.max_shard_bytes is not None:
            raise ValueError(f"{path} is one file; give a directory for shards of limited size")
        with new_file(path, overwrite=request.overwrite) as file:
            _write_file(file, arrays, metadata, request)
        return
    shards = _divide(arrays, request.max_shard_bytes)
    with new_directory(path) as directory:
        for i, names in enumerate(shards):
            name = f"model-{i + 1:05}-of-{len(shards):05}{SUFFIX}" if len(shards) > 1 else SINGLE
            with new_file(directory / name, overwrite=False) as file:
                _write_file(file, {n: arrays[n] for n in names}, metadata, request)
        if len(shards) > 1:
            _write_index(directory / INDEX, arrays, shards)


def _problem(_: str, array: ArrayStream) -> str | None:
    return None if array.dtype in _NAMES else str(array.dtype)


def _divide(arrays: Mapping[str, ArrayStream], max_bytes: int | None) -> Sequence[Sequence[str]]:
    """Divide the tensors among files; return the names of each file's tensors."""
    shards: list[list[str]] = [[]]
    held = 0
    for name, array in arrays.items():
        if max_bytes is not None and shards[-1] and held + array.nbytes > max_bytes:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += array.nbytes
    return shards


def _write_file(
    file: BinaryIO,
    arrays: Mapping[str, ArrayStream],
    metadata: Mapping[str, str],
    request: WriteRequest,
) -> None:
    # wide elements first, so that all are aligned, as in the library
    ordered = dict(sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    header: dict[str, object] = {METADATA: metadata} if metadata else {}
    position = 0
    for name, array in ordered.items():
        end = position + array.nbytes
        dtype = _NAMES[array.dtype]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise UnsupportedLeafError(f"The header would have {len(text)} bytes.", paths=[])
    written = ArrayFile(file, request)
    written.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    for array in ordered.values():
        written.write_array(array)
    written.finish()


def _write_index(
    index: Path, arrays: Mapping[str, ArrayStream], shards: Sequence[Sequence[str]]
) -> None:
    count = len(shards)
    places = {
        name: f"model-{i + 1:05}-of-{count:05}{SUFFIX}"
        for i, names in enumerate(shards)
        for name in names
    }
    size = sum(array.nbytes for array in arrays.values())
    document = {"metadata": {"total_size": size}, "weight_map": places}
    write_file(index, json.dumps(document, indent=2, sort_keys=True).encode())


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
