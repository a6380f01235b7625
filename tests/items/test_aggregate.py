"""Trees in one file, as early releases of Orbax wrote them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import aggregate_handlers as of_orbax

import orbit_ckpt as ocp
from orbit_ckpt.aggregate_handlers import MsgpackHandler
from orbit_ckpt.errors import CheckpointNotFoundError, FormatError
from tests.support import assert_same_tree


class Point(NamedTuple):
    x: int
    y: Any


TREE = {"w": np.arange(6.0).reshape(2, 3), "t": (1, 2.5), "p": Point(1, np.ones(2)), "none": {}}


def write(handler: Any, path: Path, tree: object) -> None:
    async def both() -> None:
        (await handler.serialize(path, tree)).result()

    asyncio.run(both())


@pytest.mark.interop
def test_files_are_those_of_orbax(tmp_path: Path) -> None:
    from etils import epath  # noqa: PLC0415 - what Orbax takes

    write(MsgpackHandler(), tmp_path / "ours", TREE)
    write(of_orbax.MsgpackHandler(), epath.Path(tmp_path / "orbax"), TREE)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "orbax").read_bytes()
    found = MsgpackHandler().deserialize(tmp_path / "orbax")
    expected = of_orbax.MsgpackHandler().deserialize(epath.Path(tmp_path / "ours"))
    assert_same_tree(found, expected)


def test_arrays_of_jax_and_bfloat16_are_written(tmp_path: Path) -> None:
    tree = {"a": jnp.arange(3), "b": np.ones(2, jnp.bfloat16)}
    write(MsgpackHandler(), tmp_path / "x", tree)
    assert_same_tree(
        MsgpackHandler().deserialize(tmp_path / "x"),
        {"a": np.arange(3, dtype=np.int32), **tree} | {"a": np.asarray(tree["a"])},
    )


def test_only_the_primary_process_writes(tmp_path: Path) -> None:
    write(MsgpackHandler(primary_host=1), tmp_path / "x", TREE)
    assert not (tmp_path / "x").exists()
    write(MsgpackHandler(primary_host=None), tmp_path / "x", TREE)
    assert (tmp_path / "x").exists()


def test_file_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no msgpack file at"):
        MsgpackHandler().deserialize(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"\xc1")
    with pytest.raises(FormatError):
        MsgpackHandler().deserialize(tmp_path / "x")


def test_rich_types_are_refused() -> None:
    options = ocp.PyTreeMetadataOptions(support_rich_types=True)
    with pytest.raises(NotImplementedError, match="PyTreeCheckpointHandler"):
        MsgpackHandler(pytree_metadata_options=options)
