"""Every argument of `load` has its effect in every kind of checkpoint, alone and with others.

A row of `ARGUMENTS` is an argument and what it makes of the leaves; all pairs are tried, and `plan`
has to agree. Rows are in the order in which a load applies them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt import transform as tf
from tests.support import checkpointer

ARRAYS = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.arange(3, dtype=np.int32)}
OWN = {**ARRAYS, "x": jnp.asarray(ARRAYS["x"])}
FALLBACK = {"f": np.ones(2, np.float32), "g": jnp.ones(2, jnp.float32)}


class Leaf(NamedTuple):
    """What a leaf is to be."""

    values: Any
    kind: type
    stays_numpy: bool = False
    device: int | None = None
    origin: str = "read"
    is_lazy: bool = False


Leaves = dict[str, Leaf]


def each(change: Callable[[Leaf], Leaf]) -> Callable[[Leaves], Leaves]:
    return lambda leaves: {name: change(leaf) for name, leaf in leaves.items()}


def cast(leaf: Leaf) -> Leaf:
    is_float = jnp.issubdtype(leaf.values.dtype, jnp.floating)
    return leaf._replace(values=leaf.values.astype(jnp.bfloat16)) if is_float else leaf


def placed(leaf: Leaf) -> Leaf:
    return leaf if leaf.stays_numpy else leaf._replace(kind=jax.Array, device=3)


def doubled(leaves: Leaves) -> Leaves:
    made = leaves["x"]._replace(values=leaves["x"].values * 2, origin="computed")
    return leaves | {"x": made}


def narrowed(leaves: Leaves) -> Leaves:
    return leaves | {"x": cast(leaves["x"])}


def filled(leaves: Leaves) -> Leaves:
    return leaves | {
        "f": Leaf(FALLBACK["f"], np.ndarray, True, origin="fallback"),
        "g": Leaf(np.asarray(FALLBACK["g"]), jax.Array, origin="fallback"),
    }


def same(leaves: Leaves) -> Leaves:
    return leaves


ARGUMENTS: list[tuple[dict[str, Any], Callable[[Leaves], Leaves]]] = [
    ({"transforms": [tf.Map("x", lambda x: x * 2)]}, doubled),
    ({"transforms": [tf.Cast("x", jnp.bfloat16)]}, narrowed),
    ({"only": "x"}, lambda leaves: {"x": leaves["x"]}),
    ({"skip": "n"}, lambda leaves: {"x": leaves["x"]}),
    ({"fallback": FALLBACK}, filled),
    ({"cast": jnp.bfloat16}, each(cast)),
    ({"cast": {"**": jnp.bfloat16}}, each(cast)),
    ({"sharding": jax.devices()[3]}, each(placed)),
    ({"lazy": True}, each(lambda leaf: leaf._replace(is_lazy=leaf.origin == "read"))),
    ({"memory_limit": 1}, same),
    ({"strict": False}, same),
    ({"missing": "skip", "unexpected": "ignore"}, same),
]  # fmt: skip
PAIRS = [*((row,) for row in ARGUMENTS), *itertools.combinations(ARGUMENTS, 2)]


@pytest.fixture(params=["own", "zarr2", "files", "item", "step", "safetensors", "flax"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make a checkpoint of one kind."""
    kind, path = request.param, tmp_path / "c"
    match kind:
        case "own":
            ocp.save(path, OWN)
        case "zarr2" | "files":
            checkpointer(**{"use_zarr3" if kind == "zarr2" else "use_ocdbt": False}).save(path, OWN)
        case "item":
            items = ocp.args.Composite(tree=ocp.args.StandardSave(OWN))
            ocp.Checkpointer(ocp.CompositeHandler()).save(path, args=items)
            return path / "tree"
        case "step":
            with ocp.CheckpointManager(path) as manager:
                manager.save(1, OWN)
            return path / "1"
        case _:
            ocp.save(tmp_path / "own", ARRAYS)
            path = tmp_path / "c.other"
            ocp.convert(tmp_path / "own", path, to=kind)
    return path


@pytest.mark.slow
def test_every_argument_has_its_effect_alone_and_with_each_other(stored: Path) -> None:
    is_own = stored.suffix != ".other"
    saved = {
        "x": Leaf(ARRAYS["x"], jax.Array if is_own else np.ndarray),
        "n": Leaf(ARRAYS["n"], np.ndarray, stays_numpy=is_own),
    }
    for rows in PAIRS:
        given: dict[str, Any] = {}
        for options, _ in rows:
            given |= options
        if len(given) < len(rows) or {"only", "skip"} <= given.keys():
            continue
        expected = saved
        for _, effect in rows:
            expected = effect(expected)
        check(ocp.load(stored, **given), expected, given)
        for leaf in ocp.plan(stored, **without_lazy(given)).leaves:
            assert leaf.dtype in (None, expected[leaf.name].values.dtype), (given, leaf.name)


def without_lazy(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "lazy"}


def check(loaded: Any, expected: Leaves, given: dict[str, Any]) -> None:
    pairs, _ = jax.tree.flatten_with_path(loaded)
    found = {"/".join(key.key for key in path): leaf for path, leaf in pairs}
    assert found.keys() == expected.keys(), given
    for name, wanted in expected.items():
        leaf = found[name]
        assert isinstance(leaf, ocp.LazyArray) == wanted.is_lazy, (given, name)
        leaf = leaf.get() if wanted.is_lazy else leaf
        assert isinstance(leaf, wanted.kind), (given, name)
        assert leaf.dtype == wanted.values.dtype, (given, name)
        np.testing.assert_array_equal(np.asarray(leaf), wanted.values)
        if wanted.device is not None:
            assert leaf.devices() == {jax.devices()[wanted.device]}, (given, name)
