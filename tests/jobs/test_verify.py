"""`verify` in the workers of an executor reports what one process reports, in the same order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.app import app
from orbit_ckpt._src.verify import chunks, files
from orbit_ckpt.errors import WorkerLostError
from tests.faults.support import LAYOUTS, Layout, every_kind_of_leaf
from tests.support import damage_chunk

WEIGHTS = np.random.default_rng(0).standard_normal((40, 1000))


@pytest.fixture(autouse=True)
def many_units(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chunks, files):
        monkeypatch.setattr(module, "UNIT_BYTES", 4000)


def report_of(path: Path, **options: Any) -> str:
    report = ocp.verify(path, **options)
    return f"{report.describe(most=10**6)}\n{report.damage}\n{report.shared_damage}"


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_report_is_that_of_one_process(layout: Layout, pool: Executor, tmp_path: Path) -> None:
    layout.save(tmp_path / "c", every_kind_of_leaf())
    assert report_of(tmp_path / "c", executor=pool) == report_of(tmp_path / "c")
    damaged = [file for file in (tmp_path / "c").rglob("*") if file.stat().st_size > 1000]
    for file in damaged[:3]:
        with file.open("r+b") as data:
            data.seek(700)
            data.write(b"damaged")
    alone = report_of(tmp_path / "c")
    assert "damaged: " in alone
    assert report_of(tmp_path / "c", executor=pool) == alone


def rows(count: int) -> dict[str, Any]:
    return {f"w{i}": WEIGHTS[i] for i in range(count)}


def test_damaged_and_missing_chunks_are_reported_in_order(pool: Executor, tmp_path: Path) -> None:
    Layout(use_ocdbt=False).save(tmp_path / "c", rows(9))
    for leaf in ("w7", "w1", "w4"):
        damage_chunk(tmp_path / "c", f"{leaf}/c/0")
    (tmp_path / "c" / "w2" / "c" / "0").unlink()
    alone = report_of(tmp_path / "c")
    assert alone.count("leaf w") >= 4
    assert report_of(tmp_path / "c", executor=pool) == alone


def test_steps_that_share_files_are_read_once(pool: Executor, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(incremental=True)
    with ocp.CheckpointManager(tmp_path / "run", options=options) as run:
        for step in (1, 2):
            tree = {"frozen": WEIGHTS, "w": np.full(40_000, step)}
            run.save(step, args=ocp.args.StandardSave(tree))
    damage_chunk(tmp_path / "run" / "2" / "default", "w/c/0")
    assert report_of(tmp_path / "run", executor=pool) == report_of(tmp_path / "run")


def test_other_formats_are_read_by_workers_too(pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", rows(5))
    for to, name in (
        ("safetensors", "w.safetensors"),
        ("t5x", "checkpoint_1"),
        ("flax", "w.msgpack"),
    ):
        ocp.convert(tmp_path / "c", tmp_path / name, to=to)
        assert report_of(tmp_path / name, executor=pool) == report_of(tmp_path / name)


def test_progress_ends_at_the_total(pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", rows(40))
    seen: list[tuple[int, int]] = []
    ocp.verify(tmp_path / "c", executor=pool, progress=lambda *done: seen.append(done))
    assert len(seen) > 20
    assert seen == sorted(seen)
    assert 0.9 * seen[-1][1] <= seen[-1][0] <= seen[-1][1]


def test_what_is_in_memory_is_read_here(pool: Executor) -> None:
    ocp.save("memory://executors/c", rows(3))
    report = ocp.verify("memory://executors/c", executor=pool)
    assert report.is_intact
    assert report.chunks == 3


class Mortal(Executor):
    """A process pool, one of whose workers is killed when half of the units have begun."""

    def __init__(self, pool: Executor) -> None:
        self.pool = pool
        self.begun = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.begun += 1
        if self.begun == 20:  # instead of a unit, or the other worker may do all before it is seen
            return self.pool.submit(os._exit, 1)
        return self.pool.submit(fn, *args, **kwargs)


def test_a_lost_worker_of_a_process_pool_is_an_error(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", rows(40))
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(2, mp_context=context) as pool,
        pytest.raises(WorkerLostError, match=r"ended before its work was done.*fewer workers"),
    ):
        ocp.verify(tmp_path / "c", executor=Mortal(pool))


class Faulty(Executor):
    """Reports errors of its own for the first attempts of each unit, as Dask's does at times."""

    def __init__(self, pool: Executor, error: BaseException, times: int) -> None:
        self.pool = pool
        self.error = error
        self.times = times
        self.failed: Counter[str] = Counter()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        unit = repr(args[1])
        if self.failed[unit] == self.times:
            return self.pool.submit(fn, *args, **kwargs)
        self.failed[unit] += 1
        future: Future[Any] = Future()
        if isinstance(self.error, CancelledError):
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(self.error)
        return future


def test_what_an_executor_fails_is_done_again(pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", rows(9))
    damage_chunk(tmp_path / "c", "w3/c/0")
    alone = report_of(tmp_path / "c")
    executor = Faulty(pool, TypeError("cannot unpack non-iterable ChunkCheck object"), 2)
    assert report_of(tmp_path / "c", executor=executor) == alone
    assert len(executor.failed) > 8
    with pytest.raises(MemoryError, match="one machine's"):
        report_of(tmp_path / "c", executor=Faulty(pool, MemoryError("one machine's"), 3))


def test_an_executor_that_cancels_work_is_an_error(pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", rows(9))
    with pytest.raises(WorkerLostError, match="Faulty cancelled work that was given to it"):
        ocp.verify(tmp_path / "c", executor=Faulty(pool, CancelledError(), 1))


@pytest.mark.slow  # starts a Dask cluster of two processes
def test_a_dask_cluster_answers_no_call_with_the_result_of_another(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    ocp.save(tmp_path / "c", rows(9))
    held: list[Any] = []
    with (
        distributed.LocalCluster(1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):

        def submit(*args: Any, **kwargs: Any) -> Any:
            held.append(submit_to_dask(*args, **kwargs))
            return held[-1]

        submit_to_dask, client.submit = client.submit, submit
        assert "intact" in report_of(tmp_path / "c", executor=client.get_executor())
        damage_chunk(tmp_path / "c", "w3/c/0")
        assert "w3" in report_of(tmp_path / "c", executor=client.get_executor())


@pytest.mark.slow  # starts a Dask cluster of four processes
def test_a_killed_dask_worker_changes_nothing(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    ocp.save(tmp_path / "c", rows(40))
    damage_chunk(tmp_path / "c", "w3/c/0")
    alone = report_of(tmp_path / "c")
    killed: list[int] = []
    with (
        distributed.LocalCluster(3, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = list(client.run(os.getpid).values())

        def kill_one(done: int, total: int) -> None:
            if not killed and 0.3 * total < done:
                killed.append(workers[0])
                os.kill(workers[0], signal.SIGKILL)

        assert report_of(tmp_path / "c", executor=client.get_executor(), progress=kill_one) == alone
        assert killed
        command, address = ["verify", str(tmp_path / "c")], cluster.scheduler_address
        here, there = (
            CliRunner().invoke(app, [*command, *options]) for options in ([], ["--dask", address])
        )
        assert (there.exit_code, there.output) == (here.exit_code, here.output)
        assert "w3" in here.output


def test_an_executor_is_checked_for(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"executor must be an object with submit\(\)"):
        ocp.verify(tmp_path, executor=8)  # pyright: ignore[reportArgumentType] - wrong on purpose


def test_the_command_line_starts_processes(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", rows(3))
    run = CliRunner().invoke
    alone = run(app, ["verify", str(tmp_path / "c")])
    spread = run(app, ["verify", str(tmp_path / "c"), "--workers", "1"])
    assert (spread.exit_code, spread.output) == (alone.exit_code, alone.output)
    both = run(app, ["verify", str(tmp_path / "c"), "--workers", "1", "--dask", "tcp://nowhere:1"])
    assert both.exit_code == 2


def test_workers_that_read_import_no_jax() -> None:
    modules = ("verify.units", "pytree.compare.units", "storage.measured", "storage.copy_units")
    imports = ", ".join(f"orbit_ckpt._src.{module}" for module in modules)
    code = f"import sys, {imports}; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
