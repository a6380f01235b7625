"""Which step a command reads: a run's newest one, or the one that `RUN@SELECTOR` names."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.targets import find_checkpoint, select_step
from tests.cli.conftest import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose best step is neither its first nor its last."""
    root = tmp_path_factory.mktemp("targets") / "run"
    metrics = {
        100: {"loss": 0.5, "accuracy": 0.1},
        200: {"loss": 0.25, "accuracy": 0.9},
        1200: {"loss": math.nan, "accuracy": 0.9},
        1300: {"loss": 0.4, "accuracy": 0.2},
    }
    with ocp.CheckpointManager(root) as manager:
        for step, measured in metrics.items():
            manager.save(step, {"w": np.full(3, step)}, metrics=measured)
    return root


@pytest.mark.parametrize(
    ("selector", "step"),
    [
        ("", 1300),
        ("@latest", 1300),
        ("@1200", 1200),
        ("@-1", 1300),
        ("@-4", 100),
        ("@best:loss", 200),  # the lowest, and NaN is never the best
        ("@max:loss", 100),
        ("@best:accuracy", 1200),  # the newest of two
        ("@min:accuracy", 100),
    ],
)
def test_a_run_with_a_selector_is_one_of_its_steps(run: Path, selector: str, step: int) -> None:
    assert find_checkpoint(f"{run}{selector}") == run / str(step)


def test_the_chosen_step_is_named_but_not_one_that_was_named(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find_checkpoint(run)
    find_checkpoint(f"{run}@best:loss")
    assert capsys.readouterr().err.splitlines() == [
        f"{run}/1300: the newest of 4 steps",
        f"{run}/200: the lowest loss: 0.25",
    ]
    find_checkpoint(f"{run}@200")
    find_checkpoint(run / "200")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("@1250", "no step 1250 in .*; the nearest are 200, 1200, 1300"),
        ("@-5", "has 4 steps"),
        ("@best:los", "has a metric 'los'. The nearest is 'loss'"),
        ("@best:x", "There are: loss, accuracy"),
        ("@newest", "'newest' selects no step of .*Give @latest, @STEP"),
        ("/200@latest", "is one checkpoint"),
    ],
)
def test_a_selector_that_selects_nothing_is_explained(
    run: Path, selector: str, message: str
) -> None:
    with pytest.raises(ocp.errors.CheckpointNotFoundError, match=message):
        select_step(f"{run}{selector}")


def test_a_path_that_exists_is_no_selector(run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(run / "200", tmp_path / "run@latest")
    assert find_checkpoint(copied) == copied


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["tree", "run@best:loss"],
        ["stats", "run@best:loss"],
        ["show", "run@best:loss", "w"],
        ["plan", "run@best:loss"],
        ["verify", "run@best:loss"],
        ["convert", "run@best:loss", "out", "--to", "safetensors"],
        ["cp", "run@best:loss", "copy"],
        ["ls", "run@best:loss"],
        ["diff", "run@best:loss", "run@200"],
        ["report", "run@best:loss", "--output", "report.html"],
        ["rm", "run@best:loss", "--yes"],
    ],
)
def test_all_commands_take_selectors(
    cli: Run, run: Path, tmp_path: Path, command: list[str]
) -> None:
    shutil.copytree(run, tmp_path / "run")
    found = cli(*command, "--json").json
    path = found.get("path") or found.get("source") or found["a"]
    assert path == str(tmp_path / "run" / "200")


@pytest.mark.slow
def test_show_takes_a_pattern(cli: Run, run_directory: Path) -> None:
    leaves = cli("show", run_directory, "params/*/kernel", "--json").json["leaves"]
    names = [leaf["leaf"]["name"] for leaf in leaves]
    assert names == [f"params/{name}/kernel" for name in ("dense", "layer_0", "layer_1")]
    assert leaves[1]["statistics"]["mean"] == 1
    text = cli("show", run_directory, "params/*/kernel").out
    assert all(name in text for name in names)


@pytest.mark.slow
def test_tree_draws_what_is_below_what(cli: Run, tmp_path: Path) -> None:
    block = {"mlp": {"kernel": np.ones((8, 8))}, "bias": np.ones(2)}
    ocp.save(tmp_path / "c", {"a": {"x": {"y": block}}, "b": np.ones(100)})
    lines = cli("tree", "c").out.splitlines()
    assert [line[:18].rstrip() for line in lines[1:-1]] == [
        "c",
        "├── a/x/y",
        "│   ├── bias",
        "│   └── mlp/kernel",
        "└── b",
    ]
    assert lines[2].split()[-2:] == ["528", "B"]
    by_size = cli("tree", "c", "--sort", "size", "--depth", 1, "--columns", "share,bytes").out
    assert [line.split() for line in by_size.splitlines()[2:-1]] == [
        ["├──", "b", "60.2", "%", "800"],
        ["└──", "a/x/y", "39.8", "%", "528"],
    ]
    assert "Did you mean 'share'?" in cli("tree", "c", "--columns", "sharre", status=2).err
    assert json.loads(cli("tree", "c", "--json").out)["bytes"] == 1328


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("diff RUN 10 30", "diff RUN@10 RUN@30"),
        ("diff RUN 10", "diff RUN@10 B"),
        ("show RUN 10", "show RUN@10 LEAF"),
        ("show RUN 10 step --json", "show RUN@10 step --json"),
        ("tree RUN 10", "tree RUN@10"),
        ("pin RUN 10 20", "pin RUN@10 RUN@20"),
        ("cp RUN 10 copy", "cp RUN@10 copy"),
        ("tree RUN 10 20", None),
        ("tree RUN --depth", None),
    ],
)
def test_a_step_beside_its_run_is_told_how_to_name_it(
    cli: Run, own_run: Path, words: str, meant: str | None
) -> None:
    error = cli(*words.replace("RUN", str(own_run)).split(), status=2).err
    if meant is None:
        assert "Steps are named" not in error
    else:
        line = f"Steps are named with @: orbit-ckpt {meant.replace('RUN', str(own_run))}\n"
        assert error.endswith(line) or f"{line}  See" in error
