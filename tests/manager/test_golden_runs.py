"""Runs that managers of released versions of Orbax wrote are listed, ranked and restored here.

They were made by `tests/interop/write_runs.py`, which also recorded what those releases say.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import StepNotFoundError
from tests.cells import cells
from tests.interop.expected import Comparison, comparison_for, variants
from tests.support import GOLDEN, unpack

RUNS = sorted(GOLDEN.glob("runs-*.tar.gz"))
CHECKPOINTS = sorted(GOLDEN.glob("orbax-*.tar.gz"))
ENDS = ("runs-0.2.7.tar.gz", "runs-0.12.8.tar.gz")
"""Runs of the oldest and the newest release."""

AFTER_ALL = 2_000_000

DELETED_LATER = {
    "default-pytree": {2, 3},
    "to-delete": {2, 3},
    "kept-periods": {5},
    "best": {AFTER_ALL},  # the two best are older; the newest stays too
}
"""What retention deletes when two more steps are saved."""

ARGS: Mapping[str, Any] = {
    "data": ocp.args.JsonRestore,
    "ema": ocp.args.ArrayRestore,
    "legacy": ocp.args.JaxRandomKeyRestore,
    "numpy": ocp.args.NumpyRandomKeyRestore,
    "standard": ocp.args.StandardRestore,
    "state": ocp.args.PyTreeRestore,
    "typed": ocp.args.JaxRandomKeyRestore,
}
"""Arguments by the names that `write_runs.py` gives to items."""


@pytest.fixture(params=cells(RUNS, lambda path: path.name in ENDS), ids=lambda path: path.name)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the directory of the runs of one release."""
    return unpack(request.param.name, tmp_path)


def options_of(described: Mapping[str, Any], **more: Any) -> ocp.CheckpointManagerOptions:
    fields = dict(described["options"])
    metric = fields.pop("best_metric", None)
    if metric is not None:
        fields["best_fn"] = lambda metrics: metrics[metric]
    return ocp.CheckpointManagerOptions(**{**fields, **more})


def opened(release: Path, **more: Any) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """Yield name, description and manager of every run."""
    runs = json.loads((release / "runs.json").read_text())["runs"]
    assert len(runs) >= 17
    for name, described in runs.items():
        options = options_of(described, **more)
        with ocp.CheckpointManager(release / name, options=options) as manager:
            yield name, described, manager


def items_of(described: Mapping[str, Any], restored: Any) -> Mapping[str, Any]:
    return {"default": restored} if described["items"] == ["default"] else dict(restored)


def differences(expected: Mapping[str, Any], items: Mapping[str, Any]) -> list[str]:
    found = {name: items.get(name) for name in expected}
    return [
        f"{name} {line}"
        for name, tree in expected.items()
        for line in Comparison().differences(tree, found[name])
    ]


def test_steps_metrics_and_metadata_are_those_that_orbax_sees(release: Path) -> None:
    for name, described, manager in opened(release, read_only=True):
        assert manager.all_steps() == described["all_steps"], name
        assert manager.latest_step() == described["latest_step"], name
        assert manager.best_step() == described["best_step"], name
        assert manager.metadata().custom_metadata == described["root_metadata"], name
        for step, about in described["steps"].items():
            assert manager.metrics(int(step)) == about.get("metrics"), (name, step)
            metadata = manager.metadata(int(step))
            assert metadata.metrics == about.get("metrics", {}), (name, step)
            assert metadata.custom_metadata == about.get("custom_metadata", {}), (name, step)


def test_items_are_restored_exactly_with_and_without_arguments(release: Path) -> None:
    wrong: list[str] = []
    for name, described, manager in opened(release, read_only=True):
        for step, about in described["steps"].items():
            expected = about["items"]
            restored = items_of(described, manager.restore(int(step)))
            assert restored.keys() - {"metrics"} == expected.keys()
            assert restored.get("metrics") in (None, about.get("metrics"))
            wrong += [f"{name} {step} {line}" for line in differences(expected, restored)]
            if described["items"] != ["default"]:
                args = ocp.args.Composite(**{item: ARGS[item]() for item in described["items"]})
                restored = items_of(described, manager.restore(int(step), args=args))
                wrong += [f"{name} {step}, args {line}" for line in differences(expected, restored)]
    assert wrong == []


def test_trees_are_restored_into_targets(release: Path) -> None:
    for name, described, manager in opened(release, read_only=True):
        if name in ("default", "default-pytree", "default-files", "sharded"):
            step = described["latest_step"]
            target = jax.tree.map(np.asarray, manager.restore(step))
            restored = manager.restore(step, args=ocp.args.StandardRestore(target))
            jax.tree.map(np.testing.assert_array_equal, restored, target)
            metadata = manager.item_metadata(step).tree
            assert jax.tree.structure(metadata) == jax.tree.structure(target)


@pytest.mark.slow
def test_runs_are_continued_and_old_steps_deleted(release: Path) -> None:
    steps = (AFTER_ALL, AFTER_ALL + 1)
    state = {"w": np.arange(3)}
    for name, described, manager in opened(release):
        named = described["items"] != ["default"]
        tree = ocp.args.PyTreeSave(state)
        for step in steps:
            args = ocp.args.Composite(state=tree) if named else tree
            manager.save(step, args=args, metrics={"loss": 0.3, "step": step})
        manager.wait_until_finished()
        expected = {*described["all_steps"], *steps} - DELETED_LATER.get(name, set())
        assert set(manager.all_steps(read=True)) == expected, name
        restored = manager.restore()
        np.testing.assert_array_equal((restored.state if named else restored)["w"], state["w"])


def test_what_a_killed_process_left_is_no_step_and_can_be_removed(release: Path) -> None:
    for name in ("killed", "killed-items"):
        left = [path.name for path in (release / name).iterdir() if path.name != "1"]
        assert len(left) == 1
        assert left[0].startswith("2.orbax-checkpoint-tmp")
        manager = ocp.CheckpointManager(release / name)
        assert manager.all_steps() == [1]
        with pytest.raises(StepNotFoundError):
            manager.restore(2)
        options = ocp.CheckpointManagerOptions(cleanup_tmp_directories=True)
        ocp.CheckpointManager(release / name, options=options)
        assert [path.name for path in (release / name).iterdir()] == ["1"]


@pytest.mark.parametrize("archive", CHECKPOINTS, ids=lambda path: path.name)
def test_single_steps_of_managers_are_restored_without_arguments(
    archive: Path, tmp_path: Path
) -> None:
    with tarfile.open(archive) as tar:
        members = [m for m in tar if m.name.startswith(("manager-", "v1-training", "expected"))]
        tar.extractall(tmp_path, members, filter="data")
    described = {
        name: variant
        for name, variant in variants(tmp_path).items()
        if name.startswith("manager-") or name == "v1-training"
    }
    assert described.keys() >= {"manager-single", "manager-step-name", "manager-items"}
    wrong: list[str] = []
    for name, variant in described.items():
        prefix = "ckpt" if name == "manager-step-name" else None
        options = ocp.CheckpointManagerOptions(step_prefix=prefix, read_only=True)
        manager = ocp.CheckpointManager(tmp_path / name, options=options)
        assert manager.all_steps() == [7]
        restored = manager.restore(7)
        if name == "v1-training":
            assert manager.metrics(7) == restored.metrics
            restored = next(tree for item, tree in restored.items() if item != "metrics")
        found = comparison_for(name).differences(
            variant["tree"],
            dict(restored) if name in ("manager-items", "manager-random-keys") else restored,
        )
        wrong += [f"{name} {line}" for line in found]
    assert wrong == []
