"""The benchmarks run, compare values and find faults. Nothing here looks at times."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.contenders import BUILT_IN, OPERATIONS, Settings, missing_package
from benchmarks.messages import Prepare, Prepared
from benchmarks.process import WorkerDiedError, start_worker
from benchmarks.report import failures, table
from benchmarks.results import Disk, Group, Results, Row
from benchmarks.storage import label_storages
from benchmarks.trees import TREES, make_tree
from benchmarks.verify import WrongValueError, verify
from tests.soak import SOAK

FAULTY = [f"tests.benchmarks.faulty:{name}" for name in ("Liar", "Dying", "Raising")]

KINDS = TREES if SOAK else ("small-1000", "transformer", "1x2GB", "scalars", "sharded-8")
"""The trees to try; those that `--small` makes alike only under `nox -s soak`."""


def results_of(*rows: Row) -> Results:
    group = Group("small-1000", "memory", True, leaves=4, nbytes=100, rows=list(rows))
    return Results({"cpu": "x", "cores": "1"}, {"rounds": 1}, {"torch": "not installed"}, [group])


@pytest.mark.slow
def test_small_run_fills_every_row_and_finds_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    arguments = ["--small", "--storage", str(tmp_path / "storage"), "--json", str(path)]
    status = main([*arguments, "--trees", *KINDS])
    results = Results.read(path)
    assert failures(results) == ""
    assert status == 0

    contenders = [name for name in BUILT_IN if missing_package(name) is None]
    rows = {(g.tree, r.contender, r.operation): r for g in results.groups for r in g.rows}
    assert set(rows) == set(product(KINDS, contenders, OPERATIONS))
    assert set(results.left_out) == set(BUILT_IN) - set(contenders)
    assert all(row.unsupported or len(row.seconds) == 1 for row in rows.values())
    assert all(row.disk for row in rows.values() if row.operation == "save" and row.seconds)
    assert all(row.seconds for row in rows.values() if row.contender == "orbit_ckpt")
    orbax = [row for row in rows.values() if row.contender == "orbax"]
    assert all(row.seconds for row in orbax if row.operation != "load_renamed")


@pytest.mark.slow
def test_faults_are_reported_by_contender_tree_and_operation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    arguments = ["--small", "--trees", "small-1000", "--storage", str(tmp_path / "storage")]
    status = main([*arguments, "--json", str(path), "--contenders", *FAULTY])
    [group] = Results.read(path).groups
    liar, dying, raising = (
        {r.operation: r for r in group.rows if r.contender == n} for n in FAULTY
    )
    assert status == 1
    assert liar["save"].error is None
    assert "mlp.kernel: found other values" in (liar["load_numpy"].error or "")
    assert "exit status -9" in (dying["load_jax"].error or "")
    assert dying["load_numpy"].error == "Not finished, because load_jax failed."
    assert "OSError: nowhere to put" in (raising["save"].error or "")
    assert raising["load_jax"].error == "Not finished, because save failed."
    report = capsys.readouterr().out
    assert f"FAILED: {FAULTY[0]}, load to numpy, small-1000 on" in report


def test_worker_that_does_not_answer_in_time_is_ended() -> None:
    command = Prepare("bare", "small-1000", small=True, seed=0, settings=Settings())
    with start_worker(devices=1, timeout_s=0.01) as worker:
        with pytest.raises(WorkerDiedError, match=r"no answer within 0\.01 s"):
            worker.ask(command, Prepared)
        assert not worker.is_alive


def test_ratios_are_those_of_medians() -> None:
    results = results_of(
        Row("save", "orbit_ckpt", seconds=[0.1, 0.2, 9.0], peak_bytes=[50, 50, 50]),
        Row("save", "orbax", seconds=[0.5, 0.5, 0.1], disk=Disk(files=3, nbytes=300)),
        Row("save", "bare", unsupported="only arrays"),
        Row("save", "safetensors", error="Traceback"),
    )
    text = table(results.groups[0])
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[2] == "save orbit_ckpt 200 ms 100 ms - 9,000 ms 1.00 0.40 0 kB 0.50"
    assert lines[3] == "orbax 500 ms 100 ms - 500 ms 2.50 1.00"
    assert lines[4] == "bare -"
    assert lines[5] == "safetensors FAILED"
    assert "orbax: 3 files, 0 kB, 50 bytes per leaf beyond the data" in text


def test_results_survive_their_file(tmp_path: Path) -> None:
    row = Row("save", "orbax", seconds=[0.5], disk=Disk(files=3, nbytes=300))
    results = results_of(row)
    results.write(tmp_path / "new" / "results.json")
    assert Results.read(tmp_path / "new" / "results.json") == results


def test_past_run_is_printed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is only in the bench group")
    path, plot = tmp_path / "results.json", tmp_path / "plots" / "cost.svg"
    results = results_of(Row("save", "orbax", seconds=[0.5]), Row("save", "mine", seconds=[0.4]))
    results.write(path)
    assert main(["--replay", str(path), "--plot", str(plot)]) == 0
    assert table(results.groups[0]) in capsys.readouterr().out
    assert "</svg>" in plot.read_text()


def test_same_seed_makes_the_same_tree() -> None:
    first, again = (make_tree("transformer", seed=1, small=True) for _ in range(2))
    verify(again, first, array_type=jax.Array)
    with pytest.raises(WrongValueError):
        verify(make_tree("transformer", seed=2, small=True), first, array_type=jax.Array)


@pytest.mark.parametrize(
    ("array", "number", "message"),
    [
        (np.zeros((2, 2)), 1, r"w: found float64\(2, 2\), expected float32\(2, 2\)"),
        (np.zeros(4, np.float32), 1, r"w: found float32\(4,\)"),
        (-np.zeros((2, 2), np.float32), 1, "w: found other values"),
        ([0.0], 1, "structure"),
        (0.0, 1, "w: found a float, expected a ndarray"),
        (np.zeros((2, 2), np.float32), True, "n: found True, expected 1"),
    ],
)
def test_difference_of_any_kind_is_found(array: object, number: int, message: str) -> None:
    saved = {"w": jnp.zeros((2, 2)), "n": 1}
    with pytest.raises(WrongValueError, match=message):
        verify({"w": array, "n": number}, saved, array_type=np.ndarray)


def test_storages_of_one_kind_are_told_apart(tmp_path: Path) -> None:
    storages = label_storages([tmp_path / "a", tmp_path / "b"])
    labels = [storage.label for storage in storages]
    assert len(set(labels)) == 2
