"""What one of several processes makes of its leaves, seen from it alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.items.phases import stage_item
from orbit_ckpt._src.runtime.process import Process
from orbit_ckpt.errors import UnsupportedLeafError


def stage(directory: Path, tree: object, process: Process) -> None:
    """Do what a save in the background does before it returns."""
    handler = ocp.PyTreeHandler(process=process)
    asyncio.run(stage_item(handler, directory, {"args": ocp.args.PyTreeSave(tree)}, copy=True))


def test_only_the_process_that_writes_numpy_arrays_copies_them(tmp_path: Path) -> None:
    tree = {"a": np.broadcast_to(np.ones(()), (1 << 53,)), "n": 1}  # no memory could hold a copy
    stage(tmp_path, tree, Process(1, 2))
    with pytest.raises((MemoryError, OSError)):
        stage(tmp_path, tree, Process(0, 2))


def test_lazy_arrays_on_several_processes_are_refused_as_what_they_are(tmp_path: Path) -> None:
    ocp.save(tmp_path / "1", {"a": jnp.ones(3)})
    tree = ocp.load(tmp_path / "1", lazy=True)
    handler = ocp.PyTreeHandler(process=Process(0, 2))
    args = {"args": ocp.args.PyTreeSave(tree)}
    with pytest.raises(UnsupportedLeafError, match=r"a: these arrays are lazy.*Load them"):
        asyncio.run(stage_item(handler, tmp_path / "2", args, copy=False))
    args = {"args": ocp.args.PyTreeSave({"a": jnp.ones(3)})}
    with pytest.raises(UnsupportedLeafError, match=r"a: these arrays are on devices of one proc"):
        asyncio.run(stage_item(handler, tmp_path / "2", args, copy=False))
