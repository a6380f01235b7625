"""Processes that die while converting: the next conversion leaves nothing of them behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.partial import try_lock, unlock
from tests.faults.support import Saver

TARGETS = [  # the last: every how many operations to kill
    ("m.safetensors", "safetensors", None, 1),
    ("shards", "safetensors", 2000, 3),
    ("m.msgpack", "flax", None, 1),
    ("checkpoint_5", "t5x", None, 5),
]
TREE = {"a": np.arange(400, dtype=np.float32), "b": np.arange(300, dtype=np.float32)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    ocp.save(tmp_path / "source", TREE)
    (tmp_path / "out").mkdir()
    return tmp_path / "source"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "to", "shard", "step"), TARGETS)
def test_a_conversion_after_one_that_died_leaves_nothing_else(
    saver: Saver, source: Path, name: str, to: str, shard: int | None, step: int
) -> None:
    out = source.parent / "out"
    left: set[int] = set()
    for nth in range(1, 200, step):
        order = {"do": "convert", "path": str(source), "to": to, "shard": shard, "nth": nth}
        saver.order(**order, to_path=str(out / name))
        ended = saver.report()
        found = set(os.listdir(out)) - {name}
        left.add(len(found))
        if (out / name).exists():
            assert np.array_equal(ocp.load(out / name)["a"], TREE["a"])
            if ended == {"exit": 0}:
                assert not found
                break
            os.rename(out / name, source.parent / f"{name}-{nth}")
        assert ended == {"exit": -signal.SIGKILL}
    else:
        pytest.fail("the conversion has no end")
    assert left == {0, 1}, "what the dead have left piles up"
    assert ocp.verify(out / name).is_intact


@pytest.mark.parametrize("name", [".m.safetensors.0123abcd.partial", ".c.0123abcd.partial"])
def test_what_a_living_process_writes_stays(source: Path, name: str) -> None:
    out = source.parent / "out"
    (out / name).mkdir() if name.startswith(".c") else (out / name).touch()
    lock = try_lock(out / name)
    assert lock is not None
    try:
        ocp.convert(source, out / "m.safetensors", to="safetensors")
        ocp.save(out / "c", TREE)
        assert (out / name).exists()
    finally:
        unlock(lock)
    ocp.convert(source, out / "m.safetensors", to="safetensors", overwrite=True)
    ocp.save(out / "c", TREE, overwrite=True)
    assert not (out / name).exists()


def test_only_what_a_conversion_to_the_same_path_has_left_is_removed(source: Path) -> None:
    out = source.parent / "out"
    others = [".m.safetensors.partial", ".other.0123abcd.partial", ".m.safetensors.0123abcd"]
    for name in others:
        (out / name).touch()
    ocp.convert(source, out / "m.safetensors", to="safetensors")
    assert set(os.listdir(out)) == {"m.safetensors", *others}
