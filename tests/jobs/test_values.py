"""`diff` and `stats` in the workers of an executor find what one process finds."""

from __future__ import annotations

import json
from concurrent.futures import Executor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import orbit_ckpt as ocp
from orbit_ckpt._src.checkpointer import distributed_statistics
from orbit_ckpt._src.cli import diff as diff_command
from orbit_ckpt._src.cli import values as stats_command
from orbit_ckpt._src.cli.app import app
from orbit_ckpt._src.pytree.compare import distributed
from orbit_ckpt.errors import CorruptionError
from tests.faults.support import LAYOUTS, Layout, every_kind_of_leaf
from tests.support import checkpointer, damage_chunk

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def many_units(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (distributed, distributed_statistics):
        monkeypatch.setattr(module, "UNIT_BYTES", 4000)


@pytest.fixture
def run_both(pool: Executor, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command alone and in the pool of these tests, and return both outputs."""

    def run(*args: object) -> tuple[str, str]:
        texts = list(map(str, args))
        alone = CliRunner().invoke(app, texts)
        with monkeypatch.context() as patch:
            for module in (diff_command, stats_command):
                patch.setattr(module, "open_executor", lambda *_: nullcontext(pool))
            spread = CliRunner().invoke(app, [*texts, "--workers", "2"])
        assert alone.exit_code == spread.exit_code < 2, spread.output
        return alone.output, spread.output

    return run


def state(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    wide = RANDOM.standard_normal((70, 300)).astype(np.float32)
    wide[3, 5:9] = [np.nan, np.inf, seed, -seed]
    few = rng.standard_normal(5000)
    return {"wide": wide, "few": few, "n": rng.integers(0, 9, 3000), "name": "text", "step": seed}


def save(path: Path, tree: dict[str, Any]) -> None:
    args = {name: ocp.SaveArgs(chunk_byte_size=8000) for name in tree}
    with checkpointer() as saver:
        saver.save(path, args=ocp.args.PyTreeSave(tree, save_args=args))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_values_of_every_kind_compare_alike(
    layout: Layout, pool: Executor, tmp_path: Path, run_both: Any
) -> None:
    tree = every_kind_of_leaf()
    layout.save(tmp_path / "a", tree)
    ocp.save(tmp_path / "b", tree | {"numpy": {**tree["numpy"], "large": np.ones((40, 60))}})  # pyright: ignore[reportGeneralTypeIssues] - a dict
    alone = ocp.diff(tmp_path / "a", tmp_path / "b", values=True)
    assert str(ocp.diff(tmp_path / "a", tmp_path / "b", values=True, executor=pool)) == str(alone)
    assert [change.path for change in alone.changed] == ["numpy/large"]
    alone, spread = run_both("stats", tmp_path / "a", "--json")
    assert spread == alone


def test_statistics_are_those_of_one_process(pool: Executor, tmp_path: Path) -> None:
    save(tmp_path / "a", state(1))
    alone = ocp.statistics(tmp_path / "a")
    seen: list[tuple[int, int]] = []
    spread = ocp.statistics(tmp_path / "a", executor=pool, progress=lambda *done: seen.append(done))
    assert spread == alone
    assert list(alone) == ["few", "n", "step", "wide"]
    assert (alone["wide"].nans, alone["wide"].infs, alone["step"].max) == (1, 1, 1)
    assert seen[-1][0] == seen[-1][1] > 100_000
    assert list(ocp.statistics(tmp_path / "a", skip="few", only=["few", "n"])) == ["n"]
    damage_chunk(tmp_path / "a", "wide/c/1/0")
    for executor in (None, pool):
        with pytest.raises(CorruptionError, match="wide: chunk"):
            ocp.statistics(tmp_path / "a", executor=executor)


def test_numbers_agree_to_the_last_bit(tmp_path: Path, run_both: Any) -> None:
    save(tmp_path / "a", state(1))
    save(tmp_path / "b", state(2))
    for command in (
        ("stats", tmp_path / "a"),
        ("diff", tmp_path / "a", tmp_path / "b", "--values"),
    ):
        alone, spread = run_both(*command, "--json")
        assert spread == alone
        assert json.loads(alone)


def test_damage_is_reported_alike(tmp_path: Path, run_both: Any, pool: Executor) -> None:
    save(tmp_path / "a", state(1))
    save(tmp_path / "b", state(2))
    damage_chunk(tmp_path / "a", "wide/c/1/0")
    damage_chunk(tmp_path / "b", "few/c/0")
    for command in (
        ("stats", tmp_path / "a"),
        ("diff", tmp_path / "a", tmp_path / "b", "--values"),
    ):
        alone, spread = run_both(*command)
        assert spread == alone
        assert "damaged: " in alone
    with pytest.raises(CorruptionError, match="few: chunk") as caught:
        ocp.diff(tmp_path / "a", tmp_path / "b", values=True, executor=pool)
    assert any(f"checkpoint at {tmp_path / 'b'}" in note for note in caught.value.__notes__)


def test_arrays_that_do_not_fit_are_streamed_by_workers(pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", state(1))
    ocp.save(tmp_path / "b", state(2))
    options = {"values": True, "max_bytes": 40_000}
    alone = ocp.diff(tmp_path / "a", tmp_path / "b", **options)
    seen: list[tuple[int, int]] = []
    spread = ocp.diff(
        tmp_path / "a",
        tmp_path / "b",
        **options,
        executor=pool,
        progress=lambda *done: seen.append(done),
    )
    assert str(spread) == str(alone)
    assert seen[-1][0] == seen[-1][1] > 40_000
