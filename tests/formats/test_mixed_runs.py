"""Runs that several programs wrote into: everything that looks at a run sees all of its steps."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flax import serialization

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.report.document import PageSource, ReportOptions
from orbit_ckpt._src.cli.runs import list_run, unfinished_saves
from orbit_ckpt._src.formats.locate import locate
from orbit_ckpt.checkpoint_utils import find_latest_checkpoint

SAMPLES = Path(__file__).parent / "samples"
T5X_RUN = SAMPLES / "t5x" / "v3_keep_pinned"
STATE = {"target": {"w": np.zeros(2)}, "state": {"step": np.int32(5)}}


def t5x(run: Path) -> Path:
    ocp.save(run.parent / "source", STATE, overwrite=True)
    ocp.convert(run.parent / "source", run / "checkpoint_5", to="t5x")
    return run / "checkpoint_5"


def eformer(run: Path) -> Path:
    return Path(shutil.copytree(SAMPLES / "eformer" / "run-10_unstructured", run / "run-10"))


def levanter(run: Path) -> Path:
    return Path(shutil.copytree(SAMPLES / "levanter" / "step-7", run / "step-7"))


def flax(run: Path) -> Path:
    (run / "checkpoint_5").write_bytes(serialization.msgpack_serialize(STATE))
    return run / "checkpoint_5"


PREFIXES = {t5x: ("checkpoint", "_"), eformer: ("run", "-"), levanter: ("step", "-")}
WRITERS = [t5x, eformer, levanter, flax]


@pytest.fixture(params=[(writer, style) for writer in WRITERS for style in ("manager", "save")])
def mixed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Return a run, the step that another program wrote, and the newer one written here."""
    write, style = request.param
    run = tmp_path / "run"
    run.mkdir()
    first = write(run)
    prefix, separator = PREFIXES.get(write, ("checkpoint", "_"))
    tree = {"w": np.random.default_rng(0).random(1000)}
    newest = run / f"{prefix}{separator}26"
    if style == "save":
        ocp.save(newest, tree)
    else:
        names = ocp.StepNameFormat(prefix, None, separator)
        options = ocp.CheckpointManagerOptions(step_name_format=names)
        with ocp.CheckpointManager(run, options=options) as manager:
            manager.save(26, tree)
    return run, first, newest


def test_verify_checks_all_steps_each_by_its_own_means(mixed: tuple[Path, Path, Path]) -> None:
    run, first, newest = mixed
    report = ocp.verify(run)
    assert report.is_intact
    assert report.checkpoints == (first, newest)
    data = max(newest.rglob("d/*"), key=lambda file: file.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    assert {damage.checkpoint for damage in ocp.verify(run).damage} == {newest}


def test_verify_finds_damage_of_another_programs_step(mixed: tuple[Path, Path, Path]) -> None:
    run, first, _ = mixed
    files = (
        [first]
        if first.is_file()
        else [f for f in first.rglob("*") if f.is_file() and f.name[0].isdigit()]
    )
    file = max(files, key=lambda f: f.stat().st_size)
    file.write_bytes(file.read_bytes()[:-3])
    assert {damage.checkpoint for damage in ocp.verify(run).damage} == {first}


def test_all_steps_are_listed_and_the_newest_is_the_latest(
    mixed: tuple[Path, Path, Path],
) -> None:
    run, first, newest = mixed
    assert [entry.path for entry in list_run(locate(run)) or ()] == [first, newest]
    assert find_latest_checkpoint(run) == newest
    assert ocp.detect_format(run) == "orbax"
    assert [row["path"] for row in _history(run)] == [first, newest]


def test_the_newest_step_is_loaded(mixed: tuple[Path, Path, Path]) -> None:
    run, _, newest = mixed
    found = ocp.load(run)
    assert sorted(found.get("default", found)) == ["w"]
    assert "w" in str(ocp.metadata(run).tree)
    assert not ocp.diff(run, newest, values=True)


@pytest.mark.parametrize("write", WRITERS)
def test_the_newest_step_may_be_the_other_programs(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, {"w": 1})
    newest = write(tmp_path / "run")
    assert find_latest_checkpoint(tmp_path / "run") == newest
    assert ocp.detect_format(tmp_path / "run") == ocp.detect_format(newest)
    report = ocp.verify(tmp_path / "run")
    assert report.checkpoints == (tmp_path / "run" / "3", newest)


def test_of_a_step_in_two_forms_the_own_one_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    t5x(run)
    ocp.save(run / "5", {"own": 1})
    assert ocp.load(run) == {"own": 1}
    assert find_latest_checkpoint(run) == run / "5"
    assert f"Step 5 exists twice: {run / '5'} is used" in caplog.text
    assert len(ocp.verify(run).checkpoints) == 2
    assert len(list_run(locate(run)) or ()) == 2


def test_a_step_of_ours_that_is_unfinished_is_not_the_newest(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = t5x(run)
    ocp.save(run / "checkpoint_6", {"w": 1})
    (run / "checkpoint_6").rename(run / "checkpoint_6.orbax-checkpoint-tmp-1")
    (run / "checkpoint_7.tmp-123").mkdir()
    assert ocp.load(run)["state"]["step"] == 5
    assert find_latest_checkpoint(run) == first
    assert unfinished_saves(run, []) == [
        "checkpoint_6.orbax-checkpoint-tmp-1",
        "checkpoint_7.tmp-123",
    ]


def test_the_latest_checkpoint_of_any_run_is_found(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "own") as manager:
        for step in (9, 10):
            manager.save(step, {"w": 1})
    assert find_latest_checkpoint(tmp_path / "own") == tmp_path / "own" / "10"
    assert find_latest_checkpoint(tmp_path / "own" / "9") == tmp_path / "own" / "9"
    assert find_latest_checkpoint(T5X_RUN) == T5X_RUN / "checkpoint_5"


def _history(run: Path) -> list[Any]:
    return cast(list[Any], PageSource(run, ReportOptions()).collect()["history"])
