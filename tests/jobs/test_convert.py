"""Checkpoints that workers of an executor write are those that one process writes."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage import batch_write
from orbit_ckpt.errors import CorruptionError
from orbit_ckpt.transform import ExpectedMesh
from tests.faults.support import LAYOUTS, Layout, every_kind_of_leaf, snapshot
from tests.support import damage_chunk

VALUE = np.random.default_rng(0).standard_normal((200, 500)).astype(np.float32)


@pytest.fixture(autouse=True)
def many_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_write, "UNIT_BYTES", 60_000)


def tree() -> dict[str, Any]:
    return every_kind_of_leaf() | {"big": VALUE, "more": {f"w{i}": VALUE[i] for i in range(5)}}


@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[-2], LAYOUTS[-1]], ids=str)
def test_leaves_of_every_kind_are_converted(layout: Layout, pool: Executor, tmp_path: Path) -> None:
    layout.save(tmp_path / "a", tree())
    seen: list[tuple[int, int]] = []
    ocp.convert(
        tmp_path / "a",
        tmp_path / "b",
        executor=pool,
        progress=lambda *done: seen.append(done),
    )
    assert snapshot(ocp.load(tmp_path / "b")) == snapshot(ocp.load(tmp_path / "a"))
    report = ocp.verify(tmp_path / "b")
    assert report
    assert not report.unchecked
    assert seen[-1][0] == seen[-1][1]
    ocp.convert(tmp_path / "a", tmp_path / "alone")
    trees = [str(ocp.metadata(tmp_path / name).tree) for name in ("b", "alone")]
    assert trees[0] == trees[1].replace(str(tmp_path / "alone"), str(tmp_path / "b"))


def test_workers_cast_and_cut_arrays_anew(pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"big": VALUE, "n": np.arange(70_000)})
    mesh = ExpectedMesh({"x": 2}, {"big": (None, "x")})
    options: dict[str, Any] = {"cast": {"big": jnp.bfloat16}, "expected_meshes": [mesh]}
    ocp.convert(tmp_path / "a", tmp_path / "b", **options, executor=pool)
    ocp.convert(tmp_path / "a", tmp_path / "alone", **options)
    assert not ocp.diff(tmp_path / "b", tmp_path / "alone", values=True)
    assert ocp.load(tmp_path / "b")["big"].dtype == jnp.bfloat16
    ocp.rechunk(tmp_path / "a", tmp_path / "c", [mesh], executor=pool)
    with orbax.PyTreeCheckpointer() as checkpointer:
        assert np.array_equal(checkpointer.restore(tmp_path / "c")["big"], VALUE)


def test_damage_leaves_nothing_behind(pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"big": VALUE, "n": np.arange(70_000)})
    damage_chunk(tmp_path / "a", "big/c/0/0")
    with pytest.raises(CorruptionError, match="big: chunk"):
        ocp.convert(tmp_path / "a", tmp_path / "b", executor=pool)
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


def test_files_of_lost_workers_are_removed(pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"big": VALUE})

    class Twice(Executor):
        """Runs each unit twice and loses the first result, as after the loss of a worker."""

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            pool.submit(fn, *args, **kwargs).result()
            return pool.submit(fn, *args, **kwargs)

    ocp.convert(tmp_path / "a", tmp_path / "b", executor=Twice())
    report = ocp.verify(tmp_path / "b")
    assert report
    assert not report.unchecked
    stored = sum(file.stat().st_size for file in (tmp_path / "b" / "d").iterdir())
    assert stored < 1.1 * sum(f.stat().st_size for f in (tmp_path / "a" / "d").iterdir())


def test_only_the_native_format_is_written_by_workers(pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"big": VALUE})
    with pytest.raises(ValueError, match="executor is for to='orbit' only"):
        ocp.convert(tmp_path / "a", tmp_path / "b", to="flax", executor=pool)
