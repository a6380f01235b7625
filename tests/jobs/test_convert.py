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
from orbit_ckpt._src.formats import bands, base
from orbit_ckpt._src.formats.flax_msgpack import write as flax_write
from orbit_ckpt._src.formats.t5x import write as t5x_write
from orbit_ckpt._src.formats.t5x.chunks import PARTIAL
from orbit_ckpt._src.storage import batch_write
from orbit_ckpt.errors import CorruptionError
from orbit_ckpt.formats import Format, StoredTree, WritableFormat, WriteRequest
from orbit_ckpt.transform import ExpectedMesh
from tests.faults.support import LAYOUTS, Layout, every_kind_of_leaf, snapshot
from tests.support import damage_chunk

VALUE = np.random.default_rng(0).standard_normal((200, 500)).astype(np.float32)


@pytest.fixture(autouse=True)
def many_units(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (batch_write, bands):
        monkeypatch.setattr(module, "UNIT_BYTES", 60_000)


OTHER_FORMATS = {"safetensors": "x.safetensors", "flax": "x.msgpack", "t5x": "checkpoint_1"}


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


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
    return {
        str(file.relative_to(path.parent)): file.read_bytes()
        for file in files
        if file.suffix != PARTIAL  # of a worker that was given up, where readers ignore it
    }


@pytest.mark.parametrize("to", OTHER_FORMATS)
@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[-2], LAYOUTS[-1]], ids=str)
def test_other_formats_have_the_bytes_that_one_process_writes(
    to: str,
    layout: Layout,
    pool: Executor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flax_write, "MAX_PART_BYTES", 90_000)
    monkeypatch.setattr(t5x_write, "CHUNK_BYTES", 40_000)
    rng = np.random.default_rng(0)
    arrays = {
        "big": VALUE,
        "columns": jnp.asarray(VALUE.T),
        "deep": {"box": rng.standard_normal((3, 1, 40, 300)), "half": VALUE.astype(jnp.bfloat16)},
        "n": np.arange(7),
        "none": np.zeros((0, 3)),
    }
    layout.save(tmp_path / "a", arrays)
    name = OTHER_FORMATS[to]
    seen: list[tuple[int, int]] = []
    for directory, options in (
        ("alone", {}),
        ("pool", {"executor": pool, "progress": lambda *done: seen.append(done)}),
        ("little", {"executor": pool, "max_bytes": 50_000}),
    ):
        (tmp_path / directory).mkdir()
        ocp.convert(tmp_path / "a", tmp_path / directory / name, to=to, **options)
    alone = contents(tmp_path / "alone" / name)
    assert contents(tmp_path / "pool" / name) == alone
    assert contents(tmp_path / "little" / name) == alone
    assert seen[-1][0] == seen[-1][1] > VALUE.nbytes
    found = ocp.load(tmp_path / "pool" / name)
    np.testing.assert_array_equal(found["columns"], VALUE.T)
    ocp.convert(
        tmp_path / "a",
        tmp_path / "cast" / name,
        to=to,
        cast={"big": "bfloat16"},
        executor=pool,
    )
    expected = VALUE.astype(jnp.bfloat16)
    np.testing.assert_array_equal(ocp.load(tmp_path / "cast" / name)["big"], expected)


@pytest.mark.parametrize("to", OTHER_FORMATS)
def test_damage_leaves_nothing_of_another_format(to: str, pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"big": VALUE, "n": np.arange(70_000)})
    damage_chunk(tmp_path / "a", "big/c/0/0")
    with pytest.raises(CorruptionError, match="big: chunk"):
        ocp.convert(tmp_path / "a", tmp_path / OTHER_FORMATS[to], to=to, executor=pool)
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


def test_workers_that_were_given_up_do_no_harm(pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"big": VALUE, "n": np.arange(70_000)})

    class Twice(Executor):
        """Runs each unit twice, once after its result has been used."""

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            first = pool.submit(fn, *args, **kwargs)
            self.again.append(pool.submit(fn, *args, **kwargs))
            return first

        again: list[Any]

    for to, name in OTHER_FORMATS.items():
        ocp.convert(tmp_path / "a", tmp_path / "alone" / name, to=to)
        executor = Twice()
        executor.again = []
        ocp.convert(tmp_path / "a", tmp_path / "twice" / name, to=to, executor=executor)
        for future in executor.again:
            future.exception()
        assert contents(tmp_path / "twice" / name) == contents(tmp_path / "alone" / name)


def test_a_format_that_workers_cannot_write_refuses_an_executor(
    pool: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Alone(Format, WritableFormat):
        name, extra, writes_as = "alone", None, "alone"

        def sniff(self, path: Path) -> str | None:
            return f"{path} is none"

        def open(self, path: Path) -> StoredTree:
            raise NotImplementedError

        def write(self, request: WriteRequest) -> None:
            request.path.write_bytes(b"")

    monkeypatch.setattr(base, "_registered", {"alone": Alone()})
    ocp.save(tmp_path / "a", {"big": VALUE})
    with pytest.raises(ValueError, match="'alone' is written by this process alone"):
        ocp.convert(tmp_path / "a", tmp_path / "b", to="alone", executor=pool)
