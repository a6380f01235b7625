"""Templates that every save must be like, and states that are restored or computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import orbit_ckpt as ocp
from orbit_ckpt import args
from orbit_ckpt.errors import StepNotFoundError, TransformError, TreeMismatchError
from tests.support import make_mesh

MESH = make_mesh(x=4)


def state(value: float = 0.0) -> dict[str, Any]:
    return {
        "params": {"w": jnp.full((8, 4), float(value)), "b": np.zeros(4, np.float32)},
        "none": None,
        "step": jnp.int32(value),
    }


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "not in the template: extra": lambda tree: {**tree, "extra": jnp.ones(1)},
    "missing: params/b, params/w": lambda tree: {k: v for k, v in tree.items() if k != "params"},
    r"different: step: float32\[\], not int32\[\]": lambda tree: {**tree, "step": jnp.float32(1)},
    r"different: params/w: float32\[4, 8\], not float32\[8, 4\]": lambda tree: {
        **tree,
        "params": {**tree["params"], "w": tree["params"]["w"].T},
    },
    "different: step: str, not int32": lambda tree: {**tree, "step": "3"},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_tree_unlike_the_template_is_refused_by_its_leaves(
    run: Callable[..., Any], message: str
) -> None:
    manager = run(template=jax.eval_shape(state))
    with pytest.raises(TreeMismatchError, match=message) as caught:
        manager.save(1, WRONG[message](state()))
    assert caught.value.paths
    assert manager.save(1, state())
    manager.wait_until_finished()
    assert manager.all_steps() == [1]


def test_the_template_may_be_values_or_metadata_and_numbers_fit_scalars(
    run: Callable[..., Any],
) -> None:
    first = run(template=state())
    assert first.save(1, {**state(), "step": 1})
    assert first.save(2, args=args.StandardSave(state()))
    first.wait_until_finished()
    again = run(template=first.item_metadata(2))
    assert again.save(3, state(3))
    with pytest.raises(TreeMismatchError, match="missing: step"):
        again.save(4, args=args.PyTreeSave({"params": state()["params"], "none": None}))


def test_items_have_templates_of_their_own(run: Callable[..., Any]) -> None:
    manager = run(
        template=args.Composite(state=jax.eval_shape(state)), item_names=("state", "meta")
    )
    meta = args.JsonSave({"any": 1})
    manager.save(1, args=args.Composite(state=args.StandardSave(state()), meta=meta))
    with pytest.raises(TreeMismatchError, match="item 'state', missing: none, params/b"):
        manager.save(2, args=args.Composite(state=args.StandardSave({"step": 1}), meta=meta))


@pytest.mark.parametrize(
    "sharding",
    [None, NamedSharding(MESH, P()), {"params/w": NamedSharding(MESH, P("x")), "**": MESH}],
    ids=["none", "one", "patterns"],
)
def test_a_state_is_computed_at_first_and_restored_from_then_on(
    run: Callable[..., Any], sharding: Any
) -> None:
    if isinstance(sharding, dict):
        sharding = {**sharding, "**": NamedSharding(MESH, P())}
    computed: list[float] = []

    def init() -> dict[str, Any]:
        jax.debug.callback(lambda: computed.append(1))
        return jax.tree.map(jnp.asarray, state(7))

    manager = run()
    first = manager.restore_or_init(init, sharding=sharding)
    assert first["params"]["w"][0, 0] == 7
    manager.save(3, state(3))
    second = manager.restore_or_init(init, sharding=sharding)
    assert second["step"] == 3
    jax.effects_barrier()
    assert len(computed) == 1  # only traced for the restore
    if sharding is not None:
        specs = [tree["params"]["w"].sharding.spec for tree in (first, second)]
        assert specs == [P("x") if isinstance(sharding, dict) else P()] * 2
    assert jax.tree.structure(first) == jax.tree.structure(second)


def test_a_state_is_restored_from_an_older_step_if_asked(run: Callable[..., Any]) -> None:
    manager = run()
    for step in (1, 2):
        manager.save(step, state(step))
    manager.wait_until_finished()
    for file in (manager.directory / "2" / "default").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    found = manager.restore_or_init(lambda: jax.tree.map(jnp.asarray, state()), fallback=True)
    assert found["step"] == 1


def test_a_state_that_no_pattern_places_is_an_error(run: Callable[..., Any]) -> None:
    rules = {"params/**": NamedSharding(MESH, P())}
    with pytest.raises(TransformError, match="no pattern matches 1 arrays: step"):
        run().restore_or_init(lambda: jax.tree.map(jnp.asarray, state()), sharding=rules)
    with pytest.raises(StepNotFoundError):
        run().restore()
    assert ocp.latest_step(run().directory) is None
