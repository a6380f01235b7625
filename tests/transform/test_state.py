"""Functions of the whole state, as T5X takes them, on the way in and out of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import CorruptionError, TransformError
from orbit_ckpt.transform import Map, Rename, StateTransform
from tests.support import assert_same_tree, checkpointer

TREE: dict[str, Any] = {
    "target": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": np.ones(3, np.float32)},
    "state": {"step": 7, "slots": [np.zeros(2), np.ones(2)]},
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved"
    checkpointer(use_ocdbt=False).save(path, args=ocp.args.PyTreeSave(TREE))
    return path


def ignoring(fn: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function of the state that needs nothing else."""

    def call(state: Any, target: Any, *, is_resuming: bool) -> Any:
        del target, is_resuming
        return fn(state)

    return call


def rename(state: dict[str, Any], target: dict[str, Any], *, is_resuming: bool) -> dict[str, Any]:
    """Move one leaf, drop another, take a third from the target."""
    assert not is_resuming
    target_state = state["target"]
    assert target_state["kernel"].shape == (2, 3)
    assert target_state["kernel"].dtype == np.float32
    return {
        "target": {"renamed": target_state.pop("kernel")},
        "state": state["state"],
        "ema": target.get("ema", 0),
    }


def test_state_function_moves_drops_and_adds_leaves(saved: Path) -> None:
    for file in (saved / "target.bias").rglob("c/*"):
        file.unlink()  # what is dropped is not read
    like = {
        "target": {"renamed": jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)},
        "state": TREE["state"],
        "ema": np.full(2, 9.0),
    }
    found = ocp.load(saved, like, transforms=[StateTransform(rename)])
    kernel = TREE["target"]["kernel"].astype(jnp.bfloat16)
    assert_same_tree(found, like | {"target": {"renamed": kernel}})


def test_state_functions_and_rules_run_in_their_order(saved: Path) -> None:
    rules = [
        Rename("state/step", "steps"),
        StateTransform(ignoring(lambda state: {"steps": state["steps"], "n": 1})),
        Map("steps", lambda step: step + 1),
    ]
    assert ocp.load(saved, transforms=rules) == {"n": 1, "steps": 8}


def test_state_function_is_told_whether_a_run_goes_on(saved: Path) -> None:
    told: list[bool] = []

    def fn(state: Any, target: Any, *, is_resuming: bool) -> Any:
        assert target == {}
        told.append(is_resuming)
        return state

    for flag in (True, False):
        found = ocp.load(saved, transforms=[StateTransform(fn, is_resuming=flag)])
        assert_same_tree(found, TREE)
    assert told == [True, False]


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda s: {"a": s["state"]["step"] + 1}, "state/step: a function of the"),
        (lambda s: {"a": np.asarray(s["state"]["step"])}, "compute with a Map"),
        (lambda s: s["nope"], "failed on the state: KeyError: 'nope'"),
        (lambda _: None, "returned NoneType, expected the state as a nested dict"),
        (lambda _: {"a": jax.ShapeDtypeStruct((), int)}, "a: .* is no value"),
    ],
)
def test_mistake_of_a_state_function_is_an_error(saved: Path, fn: Any, message: str) -> None:
    with pytest.raises(TransformError, match=message):
        ocp.load(saved, transforms=[StateTransform(ignoring(fn))])


def test_missing_data_of_a_moved_leaf_is_an_error(saved: Path) -> None:
    for file in (saved / "target.kernel").rglob("c/*/*"):
        file.unlink()
    with pytest.raises(CorruptionError, match=r"target/renamed: .*missing"):
        ocp.load(saved, transforms=[StateTransform(rename)])


def test_functions_on_save_run_in_order_and_see_names_shapes_and_dtypes(tmp_path: Path) -> None:
    calls: list[str] = []

    def first(state: dict[str, Any], infos: dict[str, Any]) -> Any:
        assert infos["target"]["kernel"].name == "target/kernel"
        assert infos["target"]["kernel"].shape == (2, 3)
        assert infos["state"]["step"].shape is None
        calls.append("first")
        for tree in (state, infos):
            tree["target"]["renamed"] = tree["target"].pop("kernel")
        return state, infos

    def second(state: dict[str, Any], infos: dict[str, Any]) -> Any:
        assert infos["target"]["renamed"].name == "target/kernel"
        calls.append("second")
        return {"target": state["target"]}, {"target": infos["target"]}

    ocp.save(tmp_path / "x", TREE, transforms=[first, second])
    expected = {"renamed": TREE["target"]["kernel"], "bias": TREE["target"]["bias"]}
    assert_same_tree(ocp.load(tmp_path / "x"), {"target": expected})
    assert calls == ["first", "second"]
    assert set(TREE["target"]) == {"kernel", "bias"}  # the caller's own tree is as it was
    ocp.save_async(tmp_path / "y", TREE, transforms=[first]).result()
    assert set(ocp.load(tmp_path / "y")["target"]) == {"renamed", "bias"}


def test_function_on_save_must_change_both_trees_alike(tmp_path: Path) -> None:
    with pytest.raises(TransformError, match=r"state, state/slots/0, .* are in one of them"):
        ocp.save(
            tmp_path / "x",
            TREE,
            transforms=[lambda _, infos: ({"state": 1}, infos)],
        )
