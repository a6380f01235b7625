"""Items that are added to a saved step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt import args
from orbit_ckpt.errors import CheckpointExistsError, StepNotFoundError, UnsupportedLeafError
from orbit_ckpt.policies import LatestN

MODEL, TX = {"w": np.arange(4.0)}, {"mu": np.ones(4), "count": 3}


@pytest.fixture(params=["disk", "marker", "store"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    root = f"memory://add/{tmp_path.name}" if request.param == "store" else tmp_path / "run"
    mode = ocp.AtomicityOptions(ocp.AtomicityMode.COMMIT_FILE)

    def open_run(**options: Any) -> ocp.CheckpointManager:
        if request.param == "marker":
            options["atomicity_options"] = mode
        chosen = ocp.CheckpointManagerOptions(**options)
        names = ("model", "tx", "meta")
        return ocp.CheckpointManager(root, options=chosen, item_names=names)

    return open_run


def save(manager: Any, step: int, **given: Any) -> None:
    manager.save(step, args=args.Composite(model=args.StandardSave(MODEL)), **given)


def test_an_added_item_is_like_one_saved_with_the_step(opened: Callable[..., Any]) -> None:
    with opened() as manager:
        save(manager, 1, custom_metadata={"kept": True}, metrics={"loss": 0.5})
        manager.wait_until_finished()
        before = manager.metadata(1)
        manager.save_item(1, "tx", TX)
        manager.save_item(1, "meta", args=args.JsonSave({"a": 1}))
        assert manager.steps_with_item("tx") == [1]
        for run in (manager, opened()):
            found = run.restore(1)
            assert sorted(found) == ["meta", "metrics", "model", "tx"]
            assert found["tx"]["mu"].tolist() == [1] * 4
            assert (found["tx"]["count"], found["meta"]) == (3, {"a": 1})
            after = run.metadata(1)
            assert after.custom_metadata == {"kept": True}
            assert sorted(after.item_handlers) == ["meta", "metrics", "model", "tx"]
            assert after.metrics["loss"] == 0.5
            assert run.steps_with_item("meta") == [1]
        path = manager.directory / "1"
    report = ocp.verify(path)
    assert report.is_intact
    assert not [u for u in report.unchecked if "record" in str(u)]
    assert ocp.load(path / "tx")["count"] == 3
    assert after.init_timestamp_nsecs == before.init_timestamp_nsecs


def test_damage_of_an_added_item_is_found(opened: Callable[..., Any]) -> None:
    with opened() as manager:
        save(manager, 1)
        manager.save_item(1, "meta", args=args.JsonSave({"a": 1}))
        path = manager.directory / "1"
    file = path / "meta" / "metadata"
    data = file.read_bytes()
    file.write_bytes(data.replace(b"1", b"2"))
    assert not ocp.verify(path).is_intact


def test_an_item_that_exists_is_refused_and_stays(opened: Callable[..., Any]) -> None:
    with opened() as manager:
        save(manager, 1)
        manager.save_item(1, "tx", TX)
        for name in ("tx", "model"):
            with pytest.raises(CheckpointExistsError, match=name):
                manager.save_item(1, name, {"other": 1})
        assert manager.restore(1, args=args.Composite(tx=None))["tx"]["count"] == 3


def test_a_failure_leaves_the_step_as_it_was(opened: Callable[..., Any]) -> None:
    with opened() as manager:
        save(manager, 1)
        with pytest.raises(UnsupportedLeafError):
            manager.save_item(1, "tx", {"a": object()})
        assert manager.steps_with_item("tx") == []
        assert sorted(manager.restore(1)) == ["model"]
        path = manager.directory / "1"
    assert ocp.verify(path).is_intact


def test_an_item_may_be_added_to_a_step_that_is_being_saved_and_to_later_ones(
    run: Callable[..., Any],
) -> None:
    manager = run(max_to_keep=2, item_preservation_policies={"tx": LatestN(1)})
    for step in (1, 2, 3):
        save(manager, step)
        manager.save_item(step, "tx", TX)
    manager.save(4, args=args.Composite(model=args.StandardSave(MODEL), tx=args.StandardSave(TX)))
    manager.wait_until_finished()
    assert manager.all_steps() == [3, 4]
    assert manager.steps_with_item("tx") == [4]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("a/b", {"item": TX}, "'a/b' is not a valid item name"),
        ("_x", {"item": TX}, "is not a valid item name"),
        ("metrics", {"item": TX}, "is not a valid item name"),
        ("tx", {}, "Give an item, or args="),
        ("tx", {"item": TX, "args": args.StandardSave(TX)}, "and not both"),
        ("ema", {"item": TX}, "'ema' is not among the items"),
    ],
)
def test_what_is_no_item_is_refused(
    run: Callable[..., Any], name: str, given: dict[str, Any], message: str
) -> None:
    manager = run(item_names=("model", "tx"))
    save(manager, 1)
    with pytest.raises(ValueError, match=message):
        manager.save_item(1, name, **given)
    assert sorted(manager.restore(1)) == ["model"]


def test_steps_without_named_items_and_managers_that_only_read_are_refused(
    run: Callable[..., Any],
) -> None:
    manager = run()
    manager.save(1, MODEL)
    with pytest.raises(ValueError, match=r"one tree without a name.*item_names="):
        manager.save_item(1, "tx", TX)
    with pytest.raises(StepNotFoundError):
        manager.save_item(2, "tx", TX)
    with pytest.raises(ValueError, match="read-only"):
        run(read_only=True).save_item(1, "tx", TX)
