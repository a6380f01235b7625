"""Shared code of writers of other formats: leaves as pieces of bytes, files that appear whole."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import BinaryIO, cast

import jax
import numpy as np
from msgspec import Struct, field

from orbit_ckpt._src.arrays.dtypes import DType, HostArray, is_prng_dtype
from orbit_ckpt._src.arrays.memory import byte_view
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import (
    CheckpointExistsError,
    NameCollisionError,
    UnsupportedLeafError,
)
from orbit_ckpt._src.storage import system
from orbit_ckpt._src.storage.durable import make_directories, sync_directory
from orbit_ckpt._src.storage.partial import partial_path
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.transform.patterns import Patterns, join_name
from orbit_ckpt._src.tree.flatten import FlatTree, flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import NamePath, format_path, storage_name
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyLeaf

_BLOCK_BYTES = 1 << 25

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What file systems without hard links say."""


class WriteRequest(Struct, frozen=True):
    """A tree to write in another format.

    Attributes:
        path: Where to write it.
        tree: Its leaves may be `LazyArray`.
        metadata: What to keep with it, if the format can.
        max_bytes: About how many bytes to hold at once.
        max_shard_bytes: Size above which a new file is begun, None for a single file.
        overwrite: Whether to replace a file that exists.
        inline: Patterns of arrays to write into the document of a T5X checkpoint.
        executor: Where to read and write arrays; None for this process.
    """

    path: Path
    tree: object
    metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    max_bytes: int = 1 << 28
    max_shard_bytes: int | None = None
    overwrite: bool = False
    inline: Patterns = None
    executor: Executor | None = None

    @property
    def block_bytes(self) -> int:
        """Of what size pieces of arrays are."""
        return max(1, min(_BLOCK_BYTES, self.max_bytes // 8))


class ArrayStream(Struct, frozen=True):
    """An array to write.

    Attributes:
        shape: Its shape.
        dtype: Its dtype, little-endian as its bytes are.
        blocks: Returns its values in blocks that follow one another in C order.
        stored: The same array in its checkpoint; None if it is in memory.
    """

    shape: Shape
    dtype: DType
    blocks: Callable[[WriteRequest], Iterator[HostArray]]
    stored: LazyLeaf | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def pieces(self, request: WriteRequest) -> Iterator[memoryview]:
        """Yield its bytes, little-endian, in C order."""
        yield from map(little_endian_bytes, self.blocks(request))


def little_endian_bytes(block: HostArray) -> memoryview:
    """Return the bytes of values, little-endian, in C order."""
    little = block.astype(block.dtype.newbyteorder("<"), copy=False)
    return byte_view(np.ascontiguousarray(little))


def array_stream(leaf: object) -> ArrayStream | None:
    """Convert a leaf to an array to write; None if it is not one, or holds PRNG keys."""
    if isinstance(leaf, LazyArray):
        if leaf.leaf.key_impl is not None:
            return None
        lazy = leaf.leaf
        return ArrayStream(
            leaf.shape,
            leaf.dtype.newbyteorder("<"),
            lambda r: lazy.in_order(r.block_bytes, r.max_bytes // 2),
            lazy,
        )
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        host = cast(HostArray, leaf)
        if is_prng_dtype(host.dtype):
            return None
        dtype = np.dtype(host.dtype).newbyteorder("<")
        return ArrayStream(host.shape, dtype, lambda r: _cut(host, r.block_bytes))
    return None


def named_arrays(
    what: str,
    tree: object,
    problem: Callable[[str, ArrayStream], str | None],
    *,
    reserved: str | None = None,
) -> dict[str, ArrayStream]:
    """Return the arrays of a tree by name, for a format whose names are not nested.

    A name joins the keys of a path by dots. Numbers become arrays without dimensions; None and
    empty containers are omitted.

    Args:
        what: The format, for messages.
        tree: Its leaves may be `LazyArray`.
        problem: Called with a name and its array; returns a short reason why the format cannot
            hold it, and None if it can.
        reserved: A name that no array may have.

    Raises:
        UnsupportedLeafError: Some leaves are not arrays, or have a problem.
        NameCollisionError: Two leaves would have the same name, or one the reserved one.
    """
    flat: FlatTree = flatten(tree)
    arrays: dict[str, ArrayStream] = {}
    refused: dict[NamePath, str] = {}
    same: set[str] = set()
    for names, value in zip(flat.names, flat.values, strict=True):
        if is_empty_node(value):
            continue
        is_number = isinstance(value, bool | int | float | complex)
        array = array_stream(np.asarray(value) if is_number else value)
        name = storage_name(names)
        why = kind_of(value) if array is None else problem(name, array)
        if array is None or why is not None:
            refused[names] = why or ""
        elif name in arrays or name == reserved:
            same.add(name)
        else:
            arrays[name] = array
    if refused:
        raise unsupported_leaves(what, refused)
    if same:
        leaves = [format_path(n) for n in flat.names if storage_name(n) in same]
        raise NameCollisionError(
            f"{len(leaves)} leaves ({shorten_list(leaves)}) would be called "
            f"{shorten_list(sorted(same))}. Rename them by a rule.",
            paths=leaves,
        )
    return arrays


def kind_of(leaf: object) -> str:
    """Return what messages call a leaf that cannot be written: its dtype, or its type."""
    is_array = isinstance(leaf, LazyArray | jax.Array | np.ndarray | np.generic)
    return str(cast(HostArray, leaf).dtype) if is_array else type(leaf).__name__


def unsupported_leaves(what: str, refused: Mapping[NamePath, str]) -> UnsupportedLeafError:
    """Return the error that lists leaves which cannot be written, and how to skip them.

    Args:
        what: The format or file that cannot hold them.
        refused: Their names and short reasons.
    """
    shown = [f"{format_path(names)} ({why})" for names, why in refused.items()]
    skip = [repr(join_name(names)) for names in refused]
    return UnsupportedLeafError(
        f"{what} cannot hold {len(refused)} leaves: {shorten_list(shown)}. Skip "
        f"{shorten_list(skip)}, or change them by rules.",
        paths=list(map(format_path, refused)),
    )


def _cut(value: HostArray, max_bytes: int) -> Iterator[HostArray]:
    flat = np.asarray(value).reshape(-1)
    step = max(1, max_bytes // flat.dtype.itemsize)
    for start in range(0, flat.size, step):
        yield flat[start : start + step]


@contextlib.contextmanager
def new_file(path: Path, *, overwrite: bool) -> Generator[BinaryIO]:
    """Open a file for writing, which appears under its name when the block ends without an error.

    Raises:
        CheckpointExistsError: It exists and `overwrite` is not set.
    """
    _check_free(path, overwrite=overwrite)
    make_directories(path.parent)
    with partial_path(path, lambda temporary: temporary.touch(exist_ok=False)) as temporary:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _name(temporary, path, overwrite=overwrite)
    sync_directory(path.parent)


@contextlib.contextmanager
def new_directory(path: Path) -> Generator[Path]:
    """Make a directory that appears under its name when the block ends without an error.

    Raises:
        CheckpointExistsError: The path exists; it is never replaced.
    """
    _check_free(path, overwrite=False)
    if isinstance(path, StorePath):  # the last object written has to make it a checkpoint
        try:
            yield path
        except BaseException:  # re-raised; nothing is left behind
            path.bucket.delete_below(path.prefix, last="")
            raise
        return
    make_directories(path.parent)
    with partial_path(path, Path.mkdir) as temporary:
        yield temporary
        sync_directory(temporary)
        _check_free(path, overwrite=False)
        try:
            temporary.rename(path)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise _exists(path, overwrite=False) from error
            raise
    sync_directory(path.parent)


def _name(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Give a complete file its name, in one step even if another writer does the same."""
    if not overwrite:
        try:
            system.link(temporary, path)
        except FileExistsError as error:
            raise _exists(path, overwrite=False) from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            return
    _check_free(path, overwrite=overwrite)
    temporary.replace(path)


def _check_free(path: Path, *, overwrite: bool) -> None:
    if path.exists() and not (overwrite and path.is_file()):
        raise _exists(path, overwrite=overwrite)


def _exists(path: Path, *, overwrite: bool) -> CheckpointExistsError:
    advice = "Choose another path" if overwrite or path.is_dir() else "Set overwrite=True"
    return CheckpointExistsError(f"{path} exists already. {advice}, or remove it.")
