"""Options of `load` and `save` through a manager: rules, casts, patterns, placement, fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import orbit_ckpt as ocp
from orbit_ckpt import args
from orbit_ckpt import transform as tf
from orbit_ckpt._src.checkpointer.load_options import LoadOptions
from orbit_ckpt.errors import CorruptionError, TransformError, TreeMismatchError
from tests.support import assert_same_tree, make_mesh

TREE: dict[str, Any] = {
    "params": {"w": jnp.arange(8.0), "b": jnp.ones(4)},
    "opt": {"mu": jnp.zeros(8)},
    "step": 3,
}
ROWS = NamedSharding(make_mesh(x=4), P("x"))

OPTIONS: dict[str, dict[str, Any]] = {
    "only": {"only": "params/**"},
    "skip": {"skip": ["opt/**"]},
    "transforms": {"transforms": [tf.Rename("params/**", r"target/\1")]},
    "missing": {"like": {**TREE, "extra": 1}, "missing": "target"},
    "unexpected": {"like": {"step": 0}, "unexpected": "ignore"},
    "fallback": {"like": {**TREE, "extra": 1}, "fallback": {"extra": 7}},
    "cast": {"cast": {"params/**": jnp.bfloat16}},
    "cast policy": {"like": {"step": 0, "params": {"w": np.ones(8, np.float64)}}, "cast": "unsafe"}
    | {"unexpected": "ignore", "skip": "params/b"},
    "strict": {
        "like": {"params": {"w": jnp.ones(4)}},
        "strict": False,
        "unexpected": "ignore",
    },
    "sharding": {"sharding": ROWS, "skip": "step"},
    "map_leaf": {"map_leaf": lambda leaf, name: (name, np.shape(leaf))},
    "lazy": {"lazy": True},
    "share_reads": {"share_reads": True},
    "progress": {"progress": lambda *_: None},
    "memory_limit": {"memory_limit": 100},
    "reader": {"reader": None},
}


def test_every_option_of_load_is_tried() -> None:
    assert {name.partition(" ")[0] for name in OPTIONS} == set(get_type_hints(LoadOptions))


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_does_what_it_does_in_load(run: Callable[..., Any], name: str) -> None:
    manager = run()
    manager.save(3, TREE)
    options = dict(OPTIONS[name])
    like = options.pop("like", None)
    found = manager.restore(3, like, **options)
    expected = ocp.load(manager.directory / "3", like, **options)
    if name == "lazy":
        assert isinstance(found["params"]["w"], ocp.LazyArray)
        return
    assert_same_tree(found, expected)
    if name == "sharding":
        assert found["params"]["w"].sharding == ROWS


def test_options_work_without_a_step_and_in_another_run(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    manager = run()
    manager.save(3, TREE)
    manager.save(4, {**TREE, "step": 4})
    assert manager.restore(only="step") == {"step": 4}
    with ocp.CheckpointManager(tmp_path / "other") as other:
        assert other.restore(directory=manager.directory, only="step") == {"step": 4}
        other.save(1, TREE)  # what was restored did not decide the form of the items
        assert other.restore(1, only="step") == {"step": 3}


def test_a_fallback_to_an_older_step_takes_options_too(run: Callable[..., Any]) -> None:
    manager = run()
    for step in (1, 2):
        manager.save(step, {**TREE, "step": step})
    manager.wait_until_finished()
    for file in (manager.directory / "2" / "default").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with pytest.raises(CorruptionError):
        manager.restore(only="step", cast=jnp.bfloat16)
    assert manager.restore(only="step", fallback=True) == {"step": 1}
    assert list(manager.refused) == [2]
    assert manager.restore(1, only="step", fallback=False) == {"step": 1}


def test_errors_of_options_are_those_of_load(run: Callable[..., Any]) -> None:
    manager = run()
    manager.save(1, TREE)
    with pytest.raises(TransformError, match="matches no array"):
        manager.restore(1, cast={"none": jnp.bfloat16})
    with pytest.raises(TreeMismatchError, match="extra"):
        manager.restore(1, {**TREE, "extra": 1}, cast="exact")


def test_named_items_that_are_trees_take_options(run: Callable[..., Any]) -> None:
    manager = run(item_names=("state", "ema", "meta"))
    given = {"state": args.StandardSave(TREE), "ema": args.StandardSave({"w": jnp.ones(4)})}
    manager.save(1, args=args.Composite(**given, meta=args.JsonSave({"a": 1})))
    found = manager.restore(1, {"state": None}, only="params/**", cast=jnp.bfloat16)
    assert found["state"]["params"]["w"].dtype == jnp.bfloat16
    assert set(found) == {"state"}
    both = manager.restore(1, {"state": {"step": 0}, "ema": None}, unexpected="ignore")
    assert both["state"] == {"step": 3}
    assert both["ema"]["w"].shape == (4,)
    with pytest.raises(ValueError, match=r"several items.*\(lazy\).*items=\{'state': None\}"):
        manager.restore(1, lazy=True)


def test_steps_of_another_program_take_options(tmp_path: Path) -> None:
    ocp.save(tmp_path / "own", {"target": {"w": np.ones(4, np.float32)}})
    ocp.convert(tmp_path / "own", tmp_path / "run" / "checkpoint_5", to="t5x")
    options = ocp.CheckpointManagerOptions(step_prefix="checkpoint")
    with ocp.CheckpointManager(tmp_path / "run", options=options) as manager:
        found = manager.restore(cast={"target/**": jnp.bfloat16}, sharding=ROWS)
    assert (found["target"]["w"].dtype, found["target"]["w"].sharding) == (jnp.bfloat16, ROWS)


def test_a_step_is_cast_and_changed_as_it_is_saved(run: Callable[..., Any]) -> None:
    def rename(state: Any, infos: Any) -> Any:
        return {"target": state["params"]}, {"target": infos["params"]}

    manager = run()
    assert manager.save(1, TREE, cast={"target/w": jnp.bfloat16}, transforms=[rename])
    found = manager.restore(1)
    assert sorted(found) == ["target"]
    assert (found["target"]["w"].dtype, found["target"]["b"].dtype) == (jnp.bfloat16, jnp.float32)
    assert TREE["params"]["w"].dtype == jnp.float32


def test_a_failing_option_of_save_leaves_nothing_and_the_next_save_works(
    run: Callable[..., Any],
) -> None:
    manager = run()
    with pytest.raises(TransformError, match="matches no array"):
        manager.save(1, TREE, cast={"none": jnp.bfloat16})
    manager.save(1, TREE)
    manager.wait_until_finished()
    assert manager.all_steps() == [1]
