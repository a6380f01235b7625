"""Every kind of container: exactly as in a target, and as documented without one."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import FrozenDict
from flax.training.train_state import TrainState
from jax.tree_util import DictKey, GetAttrKey, keystr

import orbit_ckpt as ocp
from orbit_ckpt._src.tree.flatten import is_empty_node
from orbit_ckpt.errors import NameCollisionError, UnsupportedLeafError
from tests.support import LAYOUTS, assert_same_tree, checkpointer


class Pair(NamedTuple):
    first: object
    second: object = None


class Nothing(NamedTuple):
    pass


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: object
    bias: object
    name: str = dataclasses.field(default="dense", metadata={"static": True})


@flax.struct.dataclass
class Struct:
    x: object
    y: object
    z: int = flax.struct.field(pytree_node=False, default=3)


class Flat:
    """A node registered without keys."""

    def __init__(self, *children: object) -> None:
        self.children = children

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Flat) and self.children == other.children

    def __hash__(self) -> int:
        return 0


class Keyed(Flat):
    """A node registered with keys, one of them an attribute."""


jax.tree_util.register_pytree_node(Flat, lambda n: (n.children, None), lambda _, c: Flat(*c))
jax.tree_util.register_pytree_with_keys(
    Keyed,
    lambda n: (((GetAttrKey("left"), n.children[0]), (DictKey("right"), n.children[1])), None),
    lambda _, c: Keyed(*c),
)


class Color(enum.Enum):
    RED = 1


class Model(nnx.Module):
    def __init__(self) -> None:
        self.layers = nnx.List([nnx.Param(jnp.ones((2, 3))), nnx.Param(jnp.zeros(3))])
        self.count = nnx.Variable(jnp.array(5))
        self.rngs = nnx.Rngs(0)


A, B = np.arange(3), np.float32(2)


def adam_state() -> Any:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)).init({"w": jnp.ones(2)})


def masked_state() -> Any:
    return optax.masked(optax.trace(0.9), {"a": True, "b": False}).init({"a": A * 1.0, "b": B})


def train_state() -> TrainState:
    return TrainState.create(
        apply_fn=nn.Dense(1).apply, params={"w": jnp.ones(2)}, tx=optax.adam(1e-3)
    )


SAME: Any = object()
"""Stands for the saved tree itself."""


class Case(NamedTuple):
    """A tree, how it is restored without a target, and how if no rich types were recorded."""

    tree: Any
    rich: Any
    plain: Any


CASES: dict[str, Case] = {
    "dict": Case({"a": A, "b": {"c": B}}, SAME, SAME),
    "dict of int keys": Case({0: A, 10: B, 2: {-1: 1}}, SAME, SAME),
    "dict of tuple keys": Case({(0, "a"): A, (0, "b"): {(): B}}, SAME, SAME),
    "dict of bool keys": Case({True: A, False: {None: B}}, SAME, SAME),
    "dict of float keys": Case({0.5: A, -1e300: {b"x": B}}, SAME, SAME),
    "dict of digits": Case({"0": A, "1": {"(1,)": B, "None": 1}}, SAME, SAME),
    "keys with dots": Case({"a.b": A, "a": {"c": B}}, SAME, SAME),
    "keys that look like categories": Case(
        {"category": A, "x": {"category": {"clazz": B}, "clazz": 1, "entries": {"key": 2}}},
        SAME,
        SAME,
    ),
    "keys of an enum": Case({Color.RED: A}, {"Color.RED": A}, {"Color.RED": A}),
    "list": Case([A, [B, [1]], *range(10)], SAME, SAME),
    "tuple": Case((A, (B, [1])), SAME, [A, [B, [1]]]),
    "namedtuple": Case(
        {"p": Pair(A, Pair(B))},
        SAME,
        {"p": {"first": A, "second": {"first": B, "second": None}}},
    ),
    "dataclass": Case(
        {"l": Layer(A, [B])},
        {"l": {"weight": A, "bias": [B]}},
        {"l": {"weight": A, "bias": [B]}},
    ),
    "flax.struct": Case(Struct(A, (B,)), {"x": A, "y": (B,)}, {"x": A, "y": [B]}),
    "node without keys": Case({"n": Flat(A, B)}, {"n": [A, B]}, {"n": [A, B]}),
    "node with keys": Case(
        {"n": Keyed(A, B)}, {"n": {"left": A, "right": B}}, {"n": {"left": A, "right": B}}
    ),
    "OrderedDict": Case(
        collections.OrderedDict([("b", A), ("a", B)]), {"b": A, "a": B}, {"b": A, "a": B}
    ),
    "defaultdict": Case(collections.defaultdict(list, {"a": A}), {"a": A}, {"a": A}),
    "FrozenDict": Case(FrozenDict({"a": {"b": A}}), {"a": {"b": A}}, {"a": {"b": A}}),
    "bare array": Case(A, SAME, SAME),
    "bare jax array": Case(jnp.arange(3), SAME, SAME),
    "bare int": Case(3, SAME, SAME),
    "bare str": Case("text", SAME, SAME),
    "None": Case(None, SAME, SAME),
    "empty dict": Case({}, SAME, SAME),
    "empty list": Case([], SAME, SAME),
    "empty tuple": Case((), SAME, SAME),
    "empty namedtuple": Case(Nothing(), SAME, None),
    "containers of empty ones": Case(
        {"a": None, "b": {}, "c": [], "d": (), "e": [None, {}], "f": Nothing(), "g": Flat()},
        {"a": None, "b": {}, "c": [], "d": (), "e": [None, {}], "f": Nothing(), "g": None},
        {"a": None, "b": {}, "c": [], "d": (), "e": [None, {}], "f": None, "g": None},
    ),
}
LIBRARIES: dict[str, Callable[[], Any]] = {
    "optax adam": adam_state,
    "optax masked": masked_state,
    "flax TrainState": train_state,
    "nnx state": lambda: nnx.state(Model()),
    "nnx pure dict": lambda: nnx.to_pure_dict(nnx.state(Model())),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    case = CASES[request.param]
    return Case(*(case.tree if part is SAME else part for part in case))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_target_gives_its_structure(case: Case, layout: dict[str, bool], tmp_path: Path) -> None:
    checkpointer(**layout).save(tmp_path / "c", case.tree)
    assert_same_tree(ocp.load(tmp_path / "c", like=case.tree), case.tree)
    assert_same_tree(ocp.PyTreeCheckpointer().restore(tmp_path / "c", case.tree), case.tree)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_target_containers_come_back_as_recorded(
    case: Case, layout: dict[str, bool], tmp_path: Path
) -> None:
    checkpointer(**layout).save(tmp_path / "c", case.tree)
    assert_same_tree(ocp.load(tmp_path / "c"), case.rich)


def test_without_rich_types_containers_come_back_as_dicts_and_lists(
    case: Case, tmp_path: Path
) -> None:
    checkpointer(rich_types=False).save(tmp_path / "c", case.tree)
    assert_same_tree(ocp.PyTreeCheckpointer().restore(tmp_path / "c"), case.plain)
    assert_same_tree(ocp.load(tmp_path / "c"), case.plain)


def test_recorded_rich_types_are_not_used_unless_asked_for(tmp_path: Path) -> None:
    checkpointer(rich_types=True).save(tmp_path / "c", (A, Pair(B)))
    restored = ocp.PyTreeCheckpointer().restore(tmp_path / "c")
    assert_same_tree(restored, [A, {"first": B, "second": None}])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", LIBRARIES.values(), ids=LIBRARIES)
def test_state_of_a_library_comes_back_into_its_own_classes(
    make: Callable[[], Any], layout: dict[str, bool], tmp_path: Path
) -> None:
    state = make()
    checkpointer(**layout).save(tmp_path / "c", state)
    assert_same_tree(ocp.load(tmp_path / "c", like=state), state)
    abstract = jax.eval_shape(lambda: state) if make is not train_state else state
    assert_same_tree(ocp.load(tmp_path / "c", like=abstract), state)


def test_optax_state_comes_back_without_a_target(tmp_path: Path) -> None:
    state = adam_state()
    ocp.save(tmp_path / "c", state)
    assert_same_tree(ocp.load(tmp_path / "c"), state)


def test_nnx_model_is_updated_from_its_restored_state(tmp_path: Path) -> None:
    model = Model()
    ocp.save(tmp_path / "c", nnx.state(model))
    other = nnx.eval_shape(Model)
    nnx.update(other, ocp.load(tmp_path / "c", like=nnx.state(other)))
    assert_same_tree(nnx.state(other), nnx.state(model))


def test_namedtuple_whose_class_is_not_here_becomes_one_with_the_same_fields(
    tmp_path: Path,
) -> None:
    local = collections.namedtuple("local", ["x", "y"])
    ocp.save(tmp_path / "c", {"p": local(A, {"q": B})})
    loaded = ocp.load(tmp_path / "c")["p"]
    assert issubclass(type(loaded), tuple)
    assert loaded._fields == ("x", "y")
    assert_same_tree([loaded.x, loaded.y], [A, {"q": B}])


def test_namedtuple_of_changed_fields_is_not_confused_with_the_saved_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ocp.save(tmp_path / "c", Pair(A, B))
    changed = collections.namedtuple("Pair", ["second", "first"])
    monkeypatch.setitem(globals(), "Pair", changed)
    loaded = ocp.load(tmp_path / "c")
    assert not isinstance(loaded, changed)
    assert_same_tree([loaded.first, loaded.second], [A, B])


def test_structure_of_metadata_is_that_of_the_restored_tree(case: Case, tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", case.tree)
    found = ocp.metadata(tmp_path / "c").tree
    assert jax.tree.structure(found) == jax.tree.structure(case.rich)


class Odd:
    """A node with two keys of the same text."""


jax.tree_util.register_pytree_with_keys(
    Odd, lambda _: (((DictKey("1"), 1), (DictKey(1), 2)), None), lambda _, __: Odd()
)


@pytest.mark.parametrize(
    "tree",
    [
        {"a.b": 1, "a": {"b": 2}},
        {"a": {"b.c": 1}, "a.b": {"c": 2}},
        {"x": [1], "x.0": 2},
        {"": {"": 1}, ".": 2},
        {"a.0": {}, "a": [None]},
        Odd(),
    ],
    ids=["key with dot", "both with dots", "position", "empty keys", "empty containers", "int key"],
)
def test_names_that_collide_are_refused_and_both_paths_are_named(
    tree: object, tmp_path: Path
) -> None:
    first, second = (
        p for p, _ in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_empty_node)[0]
    )
    with pytest.raises(NameCollisionError, match="would share a storage name") as caught:
        ocp.save(tmp_path / "c", tree)
    assert f"{keystr(first)} and {keystr(second)}" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_dict_whose_keys_do_not_sort_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be flattened"):
        ocp.save(tmp_path / "c", {1: A, "a": B})
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_wide_tree_comes_back(tmp_path: Path) -> None:
    tree = {"wide": [np.full(2, i) for i in range(3000)]}
    ocp.save(tmp_path / "c", tree)
    assert_same_tree(ocp.load(tmp_path / "c"), tree)


def nested(depth: int) -> Any:
    tree: Any = A
    for level in range(depth):
        tree = {"d": tree} if level % 2 else [tree]
    return tree


def test_deep_tree_comes_back(tmp_path: Path) -> None:
    tree = nested(200)
    ocp.save(tmp_path / "c", tree)
    assert_same_tree(ocp.load(tmp_path / "c", like=tree), tree)
    assert_same_tree(ocp.load(tmp_path / "c"), tree)


def test_tree_too_deep_to_be_rebuilt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLeafError, match="400 levels deep; at most 200"):
        ocp.save(tmp_path / "c", nested(400))
    assert not list(tmp_path.iterdir())
