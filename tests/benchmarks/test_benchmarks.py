"""The benchmarks run, compare values and find faults. Nothing here looks at times."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import memory
from benchmarks.__main__ import main
from benchmarks.clock import Meter
from benchmarks.contenders import BUILT_IN, Settings, missing_package
from benchmarks.messages import Prepare, Prepared
from benchmarks.operations import STANDARD
from benchmarks.process import WorkerDiedError, start_worker
from benchmarks.report import failures, table
from benchmarks.results import Disk, Group, Results, Row
from benchmarks.storage import label_storages
from benchmarks.trees import TREES, make_tree
from benchmarks.turns import turns_of
from benchmarks.verify import WrongValueError, verify
from tests.soak import SOAK

FAULTY = [f"tests.benchmarks.faulty:{name}" for name in ("Liar", "Dying", "Raising")]

KINDS = TREES if SOAK else ("small-1000", "transformer", "1x2GB", "scalars", "sharded-8")
"""The trees to try; those that `--small` makes alike only under `nox -s soak`."""


def spin() -> None:
    """Use 50 ms of processor time."""
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass


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
    assert set(rows) == set(product(KINDS, contenders, STANDARD))
    assert set(results.left_out) == set(BUILT_IN) - set(contenders)
    assert all(row.unsupported or len(row.seconds) == 1 for row in rows.values())
    assert all(row.disk for row in rows.values() if row.operation == "save" and row.seconds)
    assert all(row.seconds for row in rows.values() if row.contender == "orbit_ckpt")
    orbax = [row for row in rows.values() if row.contender == "orbax"]
    assert all(row.seconds for row in orbax if row.operation != "load_renamed")


def test_order_is_random_but_saves_come_first_and_a_seed_repeats_it() -> None:
    rows = [Row(o, c) for o, c in product(STANDARD, ("orbit_ckpt", "orbax", "bare"))]
    order, again = Random(1), Random(1)  # noqa: S311 - not for secrets
    first, second = turns_of(rows, order), turns_of(rows, order)
    assert {row.operation for row in first[:3]} == {"save"}
    assert first != second
    assert all(row in second for row in first)
    assert turns_of(rows, again) == first


def test_touched_memory_does_not_count_as_peak_memory() -> None:
    memory.settle()
    before = memory.reset_peak()
    if before is None:
        pytest.skip("the system does not report peak memory")
    memory.touch(2**26)
    during = memory.peak()
    assert during is not None
    assert during > before + 2**25
    after = memory.reset_peak()
    assert after is not None
    assert after < before + 2**24
    peak = memory.peak()
    assert peak is not None
    assert peak < before + 2**24


def test_meter_counts_threads_and_children_and_bytes_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(2**20))
    meter = Meter()
    with ThreadPoolExecutor() as threads:
        threads.submit(spin).result()
    alone = meter.cost()
    subprocess.run(
        [sys.executable, "-c", f"import time\n{inspect.getsource(spin)}\nspin()"], check=True
    )
    (tmp_path / "file").read_bytes()
    both = meter.cost()
    assert alone.processor_s >= 0.05
    assert both.processor_s >= alone.processor_s + 0.05
    assert both.read_bytes is None or both.read_bytes >= 2**20


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
    loads = {name: dying[name].error or "" for name in ("load_jax", "load_numpy")}
    [killed] = [name for name, error in loads.items() if "exit status -9" in error]
    del loads[killed]
    assert list(loads.values()) == [f"Not finished, because {killed} failed."]
    assert "OSError: nowhere to put" in (raising["save"].error or "")
    assert raising["load_jax"].error == "Not finished, because save failed."
    report = capsys.readouterr().out
    assert f"FAILED: {FAULTY[0]}, load to numpy, small-1000 on" in report


@pytest.mark.slow
def test_training_that_saves_wrong_values_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forgetful = "tests.benchmarks.faulty:Forgetful"
    arguments = ["training", "--small", "--trees", "small-1000", "--storage", str(tmp_path)]
    assert main([*arguments, "--contenders", forgetful, "bare"]) == 1
    report = capsys.readouterr().out
    assert f"FAILED: {forgetful}, training, small-1000\n" in report
    assert "WrongValueError: layer_00000" in report
    assert "bare -" in report


def test_worker_that_does_not_answer_in_time_is_ended() -> None:
    command = Prepare("bare", "small-1000", small=True, seed=0, settings=Settings())
    with start_worker(devices=1, timeout_s=0.01) as worker:
        with pytest.raises(WorkerDiedError, match=r"no answer within 0\.01 s"):
            worker.ask(command, Prepared)
        assert not worker.is_alive


def test_ratios_are_those_of_medians_and_of_least_processor_times() -> None:
    results = results_of(
        Row("save", "orbit_ckpt", [0.1, 0.2, 9.0], [0.3, 0.1, 0.2], peak_bytes=[50, 50, 50]),
        Row("save", "orbax", [0.5, 0.5, 0.1], [0.4, 0.5, 0.6], disk=Disk(files=3, nbytes=300)),
        Row("save", "bare", unsupported="only arrays"),
        Row("save", "safetensors", error="Traceback"),
    )
    text = table(results.groups[0])
    lines = [" ".join(line.split()) for line in text.splitlines()]
    times, processor = "200 ms 100 ms - 9,000 ms 1.00 0.40", "100 ms 1.00 0.25"
    assert lines[2] == f"save orbit_ckpt {times} {processor} 0 kB 0.50"
    assert lines[3] == "orbax 500 ms 100 ms - 500 ms 2.50 1.00 400 ms 4.00 1.00"
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
