"""Helpers shared by tests."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt.testing.comparison import expect_same
from orbit_ckpt.testing.promises import NotMetError

GOLDEN = Path(__file__).with_name("golden")
"""Archives of what released versions of Orbax wrote."""

LAYOUTS = [
    pytest.param(
        {"use_ocdbt": use_ocdbt, "use_zarr3": use_zarr3},
        id=f"{'ocdbt' if use_ocdbt else 'files'}-zarr{3 if use_zarr3 else 2}",
    )
    for use_ocdbt in (True, False)
    for use_zarr3 in (True, False)
]
"""Constructor arguments of `PyTreeHandler` for every way to store arrays."""


def make_mesh(**axes: int) -> Mesh:
    """Return a mesh over the first devices, `make_mesh(x=4, y=2)`."""
    shape = tuple(axes.values())
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    return Mesh(devices, tuple(axes))


def put(value: object, *spec: Any, **axes: int) -> jax.Array:
    """Return a JAX array laid out over a mesh: `put(x, "x", None, x=8)`."""
    return jax.device_put(value, NamedSharding(make_mesh(**axes), PartitionSpec(*spec)))


def checkpointer(*, rich_types: bool = True, **options: Any) -> ocp.Checkpointer:
    """Return a checkpointer of trees; with the defaults it stores what `ocp.save` does."""
    metadata_options = ocp.PyTreeMetadataOptions(support_rich_types=rich_types)
    return ocp.Checkpointer(ocp.PyTreeHandler(pytree_metadata_options=metadata_options, **options))


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Count the bytes of chunks, as stored, that this process reads meanwhile."""
    readers: list[BatchReader] = []
    original = BatchReader.__init__

    def init(self: BatchReader, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        readers.append(self)

    total = [0]
    BatchReader.__init__ = init
    try:
        yield total
    finally:
        BatchReader.__init__ = original
        total[0] = sum(reader.bytes_read for reader in readers)


def unpack(archive: str, directory: Path) -> Path:
    """Extract an archive of `GOLDEN` into a directory, and return the directory."""
    with tarfile.open(GOLDEN / archive) as tar:
        tar.extractall(directory, filter="data")
    return directory


def entries(directory: Path) -> set[str]:
    """Return the names in a directory."""
    return {path.name for path in directory.iterdir()}


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait for what another process does and gives no sign of."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{condition} is not met after {timeout_s} s"
        threading.Event().wait(0.02)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Make a path to save to, for Hypothesis tests, whose examples cannot share `tmp_path`."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "checkpoint"


def flip_every_bit(file: Path) -> Iterator[None]:
    """Flip one bit of a file after the other, each for the time of one round of a loop."""
    data = file.read_bytes()
    for index in range(len(data) * 8):
        changed = bytearray(data)
        changed[index // 8] ^= 1 << index % 8
        file.write_bytes(changed)
        yield
    file.write_bytes(data)


def damage_chunk(directory: Path, key: str) -> str:
    """Flip a bit in the middle of a chunk of a stored tree; return the file that it is in.

    Args:
        directory: Where the tree is, of any layout.
        key: Storage key of the chunk.
    """
    alone = directory / key
    is_alone = alone.is_file()
    place = Extent(str(alone), 0, alone.stat().st_size) if is_alone else read_index(directory)[key]
    assert isinstance(place, Extent)  # else the chunk is in the index itself
    with open(place.file, "r+b") as file:
        file.seek(place.offset + place.length // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    return place.file


def assert_same_tree(actual: object, expected: object) -> None:
    """Assert equal containers, key types, leaf types, dtypes, shapes, shardings and bits."""
    # equal structures may still differ in their keys: 1 == True == 1.0
    assert str(jax.tree.structure(actual)) == str(jax.tree.structure(expected))
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    pairs = jax.tree_util.tree_flatten_with_path(expected)[0]
    for (path, wanted), found in zip(pairs, jax.tree.leaves(actual), strict=True):
        assert_same_leaf(found, wanted, jax.tree_util.keystr(path))


def assert_same_leaf(actual: object, expected: object, where: str = "the leaf") -> None:
    """Assert equal type, dtype, shape, sharding and bits; byte order apart."""
    try:
        expect_same(actual, expected, where)
    except NotMetError as error:
        raise AssertionError(str(error)) from None
