"""Commands about runs: marks of `ls`, `pin`, `unpin`, `du`, `watch`; and `export`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.runs import ListedStep
from orbit_ckpt._src.cli.watch import State, describe, human_seconds
from orbit_ckpt._src.manager.step_info import StepInfo
from tests.cli.conftest import Run, Terminal
from tests.support import damage_chunk

pytestmark = pytest.mark.slow


def marks(cli: Run, run: Path, env: dict[str, str]) -> dict[int, list[str]]:
    steps = cli("ls", run, "--json", env=env).json["steps"]
    return {step["step"]: step["marks"] for step in steps}


def test_ls_marks_what_is_known_of_steps(cli: Run, own_run: Path, tmp_path: Path) -> None:
    env = {"ORBIT_CKPT_CACHE": str(tmp_path / "cache")}
    assert marks(cli, own_run, env) == {10: ["pinned"], 20: ["best loss"], 30: []}
    damage_chunk(own_run / "20" / "default", "opt_state.0/c/0/0")
    before = sorted(str(file) for file in own_run.rglob("*"))
    cli("verify", own_run, env=env, status=1)
    cli("stats", f"{own_run}@30", env=env)  # `odd` holds NaN
    assert marks(cli, own_run, env) == {
        10: ["pinned", "verified"],
        20: ["damaged", "best loss"],
        30: ["NaN", "verified"],
    }
    assert sorted(str(file) for file in own_run.rglob("*")) == before  # the run is not changed
    text = cli("ls", own_run, env=env).out
    assert "damaged, best loss" in text.splitlines()[2]
    with ocp.CheckpointManager(own_run) as manager:
        manager.delete(30)
        manager.save(30, {"w": np.ones(2)})
    assert marks(cli, own_run, env)[30] == []  # other files: nothing is known


def test_a_nan_metric_is_marked_without_any_record(cli: Run, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        for step, loss in ((1, 0.5), (2, math.nan)):
            manager.save(step, {"w": np.ones(2)}, metrics={"loss": loss})
    assert marks(cli, tmp_path / "run", {}) == {1: ["best loss"], 2: ["NaN"]}


def test_pin_and_unpin(cli: Run, own_run: Path) -> None:
    cli("pin", "run@latest", "run/20")
    assert (own_run / "30/PINNED").exists()
    cli("unpin", "run@10", "run/20")
    steps = cli("ls", own_run, "--json").json["steps"]
    assert [step["pinned"] for step in steps] == [False, False, True]
    assert ocp.verify(own_run)
    assert "run@latest" in cli("pin", "run", status=2).err
    assert "is an item" in cli("pin", "run/20/default", status=2).err


def test_du_counts_shared_files_once(cli: Run, own_run: Path) -> None:
    whole = cli("du", own_run, "--json").json
    sizes = {entry["name"]: entry["bytes"] for entry in whole["entries"]}
    steps = cli("ls", own_run, "--json").json["steps"]
    assert sizes == {str(step["step"]): step["bytes"] for step in steps}
    assert whole["bytes"] == whole["disk_bytes"] == sum(sizes.values())
    (own_run / "40.orbax-checkpoint-tmp-1").mkdir()
    (own_run / "40.orbax-checkpoint-tmp-1" / "d").write_bytes(bytes(1000))
    (own_run / "20" / "more").write_bytes(bytes(500))
    os.link(own_run / "20" / "more", own_run / "30" / "more")
    found = cli("du", own_run, "--json").json
    rows = {entry["name"]: entry for entry in found["entries"]}
    assert [rows[name]["shared"] for name in ("10", "20", "30")] == [0, 500, 500]
    assert rows["40.orbax-checkpoint-tmp-1"]["unfinished"] is True
    assert found["bytes"] - found["disk_bytes"] == 500
    assert rows["30"]["bytes"] - rows["30"]["new"] == 500
    assert "500 B less than without sharing" in cli("du", own_run).out
    parts = {entry["name"] for entry in cli("du", own_run / "10", "--json").json["entries"]}
    assert {"default", "metrics"} <= parts


def test_what_an_incremental_save_shares_is_shown(cli: Run, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(incremental=True)
    frozen = np.random.default_rng(0).standard_normal((400, 400))
    with ocp.CheckpointManager(tmp_path / "run", options=options) as run:
        for step in (1, 2, 3):
            state = {"frozen": frozen, "w": np.full(3, step)}
            run.save(step, args=ocp.args.StandardSave(state))
    listed = cli("ls", "run", "--json").json["steps"]
    used = cli("du", "run", "--json").json
    assert listed[0]["new_bytes"] == listed[0]["bytes"] > frozen.nbytes / 2
    for step, entry in zip(listed, used["entries"], strict=True):
        assert step["shared_bytes"] == entry["shared"] > frozen.nbytes / 2
        assert step["new_bytes"] == entry["new"]
    assert all(step["new_bytes"] < frozen.nbytes / 10 for step in listed[1:])
    files = [p.stat() for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert used["disk_bytes"] == sum({s.st_ino: s.st_size for s in files}.values())
    table = cli("ls", "run").out
    assert table.splitlines()[0].split()[:4] == ["step", "size", "new", "shared"]
    assert table.splitlines()[-1].endswith(" on the disk")
    assert "shared with step 1, 3" in cli("tree", "run@2").out
    whole = cli("cp", "run/2", "copy") and cli("tree", "copy").out
    assert "shared" not in whole


def test_watch_prints_steps_until_one(cli: Run, own_run: Path) -> None:
    lines = cli("watch", own_run, "--until", 30, "--json").out.splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 30]
    assert json.loads(lines[1])["metrics"] == {"loss": 0.25}
    assert "0.25" in cli("watch", own_run, "--until", 30).out


def test_watch_shows_a_step_when_it_appears(
    own_run: Path, on_terminal: Callable[..., Terminal]
) -> None:
    child = on_terminal("watch", own_run, "--until", 50, "--interval", 0.05)
    child.expect("step 50 in about")
    with ocp.CheckpointManager(own_run) as manager:
        manager.save(40, {"w": np.ones(2)}, metrics={"loss": 0.125})
    child.expect("40 .*loss 0.125")
    with ocp.CheckpointManager(own_run) as manager:
        manager.save(50, {"w": np.ones(2)})
    assert child.end()[0] == 0


def test_an_interrupt_ends_watch(tmp_path: Path, on_terminal: Callable[..., Terminal]) -> None:
    child = on_terminal("watch", tmp_path / "later", "--interval", 0.05)
    child.expect("waiting for steps")
    child.interrupt()
    assert child.end()[0] == 130


def listed(step: int, seconds: int, directory: Path) -> ListedStep:
    time = datetime.now(UTC) - timedelta(seconds=1000 - seconds)
    path = directory / str(step)
    path.mkdir(exist_ok=True)
    (path / "data").write_bytes(bytes(1000))
    return ListedStep(StepInfo(step, time), path, path.name)


def test_watch_estimates_the_time_left(tmp_path: Path) -> None:
    steps = [listed(100, 0, tmp_path), listed(200, 1000, tmp_path)]  # ten seconds for a step
    before = State(steps, {"300.tmp": 200}, 10.0)
    now = State(steps, {"300.tmp": 400}, 12.0)
    assert describe(before, now, 560) == (
        "saving 300.tmp: 400 B of about 1.0 kB, 6 s left, step 560 in about 1.0 h"
    )
    assert "not growing" in describe(now, now, None)
    assert describe(None, State(steps, {}, 0.0), None) == "a step every 17 min"
    assert [human_seconds(n) for n in (5, 600, 90_000, 400_000)] == [
        *("5 s", "10 min", "25.0 h", "4.6 days")
    ]
    assert [human_seconds(n) for n in (59.4, 59.6, 3569, 3599.9)] == [
        *("59 s", "1 min", "59 min", "1.0 h")
    ]


def test_export_writes_what_numpy_reads(cli: Run, run_directory: Path, tmp_path: Path) -> None:
    cli("export", f"{run_directory}@20", "params/dense/kernel", "k.npy")
    expected = ocp.load(run_directory / "20", only="params/dense/kernel")
    np.testing.assert_array_equal(
        np.load(tmp_path / "k.npy"), expected["params"]["dense"]["kernel"]
    )
    found = cli("export", run_directory, "params/**", "p.npz", "--cast", "float32", "--json").json
    with np.load(tmp_path / "p.npz") as archive:
        assert sorted(archive) == sorted(found["leaves"])
        assert archive["params/dense/bias"].dtype == np.float32
        np.testing.assert_array_equal(archive["params/layer_1/kernel"], np.ones((4, 4)))
    errors = {
        ("params/dense/bias", "b.npy"): "bfloat16, which .npy files do not record. Pass --cast",
        ("name", "n.npy"): "name is string, which .npy files cannot hold",
        ("params/**", "p.npy"): "must end in .npz",
        ("step", "k.npy"): "exists already. Pass --overwrite",
        ("step", "k.txt"): "must end in .npy",
    }
    for (leaf, file), message in errors.items():
        assert message in cli("export", run_directory, leaf, file, status=2).err
    cli("export", run_directory, "step", "k.npy", "--overwrite")
    assert np.load(tmp_path / "k.npy") == 30
    assert not list(tmp_path.glob(".*.partial"))


def test_export_leaves_out_damaged_leaves(cli: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ocp.save(tmp_path / "c", {"a": rng.random((500, 9)), "b": rng.random((500, 9))})
    damage_chunk(tmp_path / "c", "a/c/0/0")
    found = cli("export", "c", "*", "all.npz", "--json", status=1).json
    assert found["leaves"] == ["b"]
    assert "'a/c/0/0'" in found["damage"][0]
    with np.load(tmp_path / "all.npz") as archive:
        assert list(archive) == ["b"]
    assert "damaged: a" in cli("export", "c", "a", "a.npy", status=1).out
    assert not (tmp_path / "a.npy").exists()
