"""Functions of trees, against Orbax's."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest
from flax.core import FrozenDict

import orbit_ckpt.arrays
import orbit_ckpt.checkpoint_utils
import orbit_ckpt.tree
import orbit_ckpt.utils

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("quiet_orbax")]


class Point(NamedTuple):
    x: Any
    y: Any


@flax.struct.dataclass
class State:
    params: Any
    step: Any = 0
    name: str = flax.struct.field(pytree_node=False, default="s")


@jax.tree_util.register_pytree_node_class
class Pair:
    """A node whose children have no keys."""

    def __init__(self, first: Any, second: Any) -> None:
        self.children = (first, second)

    def tree_flatten(self) -> tuple[Any, None]:
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Pair:
        return cls(*children)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and self.children == other.children

    __hash__ = None  # type: ignore[assignment]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Nothing:
    """A node without children."""


TREES: dict[str, Any] = {
    "dict": {"a": 1, "b": {"c": 2, "d": {"e": 3}}},
    "list": [1, [2, 3], {"a": 4}],
    "tuple": (1, (2,), [3]),
    "leaf": 5,
    "text": "text",
    "none": None,
    "some none": {"a": None, "b": 1},
    "empty dict": {},
    "empty list": [],
    "empty tuple": (),
    "empty nodes": {"a": {}, "b": [], "c": (), "d": 1, "e": Nothing()},
    "only empty": {"a": {}},
    "none first": [None, 1],
    "namedtuple": Point(1, {"a": 2}),
    "namedtuples": [Point(1, 2), Point(3, None)],
    "integer keys": {0: "a", 1: {2: "b"}},
    "tuple keys": {("a", 1): 1, ("b", 2): 2},
    "float keys": {0.5: 1},
    "separators": {"a.b": 1, "c/d": {"e": 2}},
    "flax": State({"w": 1}, 2),
    "flax in list": [State(None), State({})],
    "no keys": Pair(1, {"a": 2}),
    "no keys below": {"p": Pair([1], Point(2, 3))},
    "ordered": collections.OrderedDict(b=1, a=2),
    "default": collections.defaultdict(int, b=1, a=2),
    "frozen": FrozenDict({"a": {"b": 1}}),
}


def outcome(call: Callable[[], Any]) -> Any:
    """Return a result with the classes of its containers, or the class of the error."""
    try:
        result = call()
    except (ValueError, TypeError, KeyError, IndexError, AssertionError, AttributeError) as error:
        return error
    return typed(result)


def typed(tree: Any) -> Any:
    """Return a comparable form of a tree."""
    if type(tree).__name__ in ("PartsOf", "PartialTree"):
        return typed(tree.unsafe_structure)
    if isinstance(tree, dict | FrozenDict):
        return type(tree).__name__, {key: typed(child) for key, child in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree).__name__, [typed(child) for child in tree]
    if isinstance(tree, State | Pair):
        leaves, structure = jax.tree.flatten(tree)
        return str(structure), typed(leaves)
    return tree


def assert_alike(name: str, *args: Any, module: str = "tree", **kwargs: Any) -> Any:
    """Call a function of both libraries, and assert that both return the same, or fail.

    Orbax fails with whatever happens to go wrong, or with an assertion.
    """
    functions = (getattr(getattr(library, module), name) for library in (orbit_ckpt, orbax))
    ours, theirs = (outcome(partial(function, *args, **kwargs)) for function in functions)
    if isinstance(theirs, Exception):
        assert isinstance(ours, ValueError | TypeError | KeyError), (ours, theirs)
    else:
        assert ours == theirs
    return ours


trees = pytest.mark.parametrize("name", TREES)


@trees
@pytest.mark.parametrize("keep_empty_nodes", [True, False])
def test_tree_is_serialized_as_by_orbax(name: str, keep_empty_nodes: bool) -> None:
    assert_alike("serialize_tree", TREES[name], keep_empty_nodes)
    assert_alike("serialize_tree", TREES[name], keep_empty_nodes, module="utils")


@trees
@pytest.mark.parametrize("keep_empty_nodes", [True, False])
def test_serialized_tree_is_deserialized_as_by_orbax(name: str, keep_empty_nodes: bool) -> None:
    tree = TREES[name]
    serialized = outcome(lambda: orbax.tree.serialize_tree(tree, keep_empty_nodes))
    if isinstance(serialized, Exception):
        return
    serialized = orbax.tree.serialize_tree(tree, keep_empty_nodes)
    assert_alike("deserialize_tree", serialized, tree, keep_empty_nodes)
    if "keys" not in name:  # Orbax takes the text of a key only
        assert_alike("deserialize_tree", tree, tree, keep_empty_nodes)


def test_keys_other_than_text_are_found() -> None:
    tree = {0: {("a", 1): 2}}
    assert orbit_ckpt.tree.deserialize_tree(tree, tree) == tree


@pytest.mark.parametrize(
    ("serialized", "target"),
    [
        ({"a": 1}, {"b": 1}),
        ({"a": [1]}, {"a": [1, 2]}),
        ({"a": {"b": 1}}, {"a": 0}),
        ({"a": 1}, {"a": {"b": 0}}),
        ([1, 2], {"a": 0}),
        (Point(1, 2), Point(0, 0)),
        (State({"w": 1}), State({"w": 0})),
        (Pair(1, 2), Pair(0, 0)),
        ({"x": 1, "y": 2, "z": 3}, Point(0, 0)),
    ],
)
def test_target_of_another_structure_is_treated_as_by_orbax(serialized: Any, target: Any) -> None:
    assert_alike("deserialize_tree", serialized, target)


@trees
@pytest.mark.parametrize("sep", [None, ".", "/"])
@pytest.mark.parametrize("keep_empty_nodes", [True, False])
def test_flat_dict_is_that_of_orbax(name: str, sep: str | None, keep_empty_nodes: bool) -> None:
    tree = TREES[name]
    flat = assert_alike("to_flat_dict", tree, sep, keep_empty_nodes)
    assert list(flat[1]) == list(orbax.tree.to_flat_dict(tree, sep, keep_empty_nodes))
    assert_alike("to_flat_dict", tree, sep, is_leaf=lambda node: isinstance(node, list))
    flat = orbax.tree.to_flat_dict(tree, sep, keep_empty_nodes)
    assert_alike("from_flat_dict", flat, sep=sep)
    assert_alike("from_flat_dict", flat, tree, sep)
    assert_alike("from_flat_dict", flat, {"other": 1}, sep)
    assert_alike("is_flat_dict", flat)
    assert_alike("is_flat_dict", tree)


@pytest.mark.parametrize("target", [None, {"a": {"b": 0}, "c": 0}])
def test_flat_dict_is_emptied_in_place(target: Any) -> None:
    for library in (orbit_ckpt, orbax):
        flat = {("a", "b"): 1, ("c",): 2}
        assert library.tree.from_flat_dict(flat, target, inplace=True) == {"a": {"b": 1}, "c": 2}
        assert flat == {}
    assert_alike("from_flat_dict", FrozenDict({"a": 1}), sep="/", inplace=True)


@pytest.mark.parametrize(
    "flat",
    [{}, {(): 1}, {(): 1, ("a",): 2}, {"a": 1}, {("a",): 1, ("a", "b"): 2}, {(0, "a"): 1}],
)
def test_unusual_flat_dict_is_treated_as_by_orbax(flat: dict[Any, Any]) -> None:
    assert_alike("from_flat_dict", flat)


def test_missing_leaf_of_a_target_is_named() -> None:
    with pytest.raises(KeyError, match=r"^The target has leaves that the flat dict lacks: a/b\."):
        orbit_ckpt.tree.from_flat_dict({("a",): 1}, {"a": {"b": 1}})


@trees
@pytest.mark.parametrize("include_empty_nodes", [True, False])
def test_names_of_leaves_are_those_of_orbax(name: str, include_empty_nodes: bool) -> None:
    assert_alike("get_param_names", TREES[name], include_empty_nodes=include_empty_nodes)


@trees
def test_keys_are_named_as_by_orbax(name: str) -> None:
    for path, _ in jax.tree_util.tree_flatten_with_path(TREES[name])[0]:
        assert_alike("str_keypath", path)
        assert_alike("tuple_path_from_keypath", path, module="utils")
        for key in path:
            for function in ("get_key_name", "is_dict_key", "is_sequence_key"):
                assert_alike(function, key, module="utils")
    assert_alike("get_key_name", "no key", module="utils")


@trees
def test_nodes_are_told_from_leaves_as_by_orbax(name: str) -> None:
    for node in (TREES[name], *jax.tree.leaves(TREES[name])):
        assert_alike("is_empty_node", node, module="utils")
        assert_alike("is_empty_or_leaf", node, module="utils")


SEQUENCE, DICT = jax.tree_util.SequenceKey, jax.tree_util.DictKey


@pytest.mark.parametrize(
    "leaves",
    [
        [],
        [((), 1)],
        [((DICT("a"), SEQUENCE(0)), 1), ((DICT("a"), SEQUENCE(1)), 2)],
        [((SEQUENCE(1),), 1)],
        [((SEQUENCE(0),), 1), ((DICT("a"),), 2)],
        [((jax.tree_util.FlattenedIndexKey(0), DICT(3)), 1)],
    ],
)
def test_tree_is_built_from_paths_as_by_orbax(leaves: Any) -> None:
    assert_alike("from_flattened_with_keypath", leaves, module="utils")


@trees
def test_difference_is_that_of_orbax(name: str) -> None:
    for other in TREES.values():
        assert_alike("tree_difference", TREES[name], other)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"x": [1, 2, 3], "y": "s", "z": {"p": {}, "q": 4, "r": 6}},
         {"x": [1, 3], "y": "s", "z": {"p": {}, "q": 5, "s": 6}}),
        ([1, {"a": 2}], [1, {"a": "b"}]),
        ((1, 2), (1, "b")),
        (Point(1, 2), Point(1, "b")),
        (State({"a": 1}, 2), State({"a": 1, "b": 3}, 2)),
        (Pair(1, 2), Pair("a", 2)),
        ({"a": None}, {"a": 1}),
        (FrozenDict({"a": 1}), FrozenDict({"b": 1})),
    ],
)  # fmt: skip
def test_difference_of_similar_trees_is_that_of_orbax(first: Any, second: Any) -> None:
    assert assert_alike("tree_difference", first, second) is not None
    assert_alike("tree_difference", first, second, leaves_equal=lambda a, b: a == b)
    assert_alike("tree_difference", first, second, is_leaf=lambda x: not isinstance(x, dict))
    assert_alike("tree_difference", first, first)


def assert_trimmed_alike(template: Any, structure: Any) -> None:
    """Trim a tree with both libraries and all options; compare results and what is dropped."""
    for strict, align in itertools.product((True, False), repeat=2):
        options: dict[str, Any] = {"strict": strict, "allow_sequence_mapping_alignment": align}
        result = assert_alike("tree_trim", template, structure, **options)
        dropped: list[list[Any]] = [[], []]
        if isinstance(result, Exception):
            continue
        libraries: tuple[Any, ...] = (orbit_ckpt, orbax)
        for library, found in zip(libraries, dropped, strict=True):
            library.tree.tree_trim(
                template,
                structure,
                trimmed_structure_callback=lambda *args, found=found: found.append(typed(args)),
                **options,
            )
        assert dropped[0] == dropped[1]


def test_nothing_is_trimmed_to_nothing() -> None:
    assert orbit_ckpt.tree.tree_trim(None, {"a": 1}) is None  # Orbax returns a dict


# Orbax cannot make a `defaultdict`
@pytest.mark.parametrize("name", sorted(TREES.keys() - {"none", "default"}))
def test_tree_is_trimmed_as_by_orbax(name: str) -> None:
    for structure in TREES.values():
        assert_trimmed_alike(TREES[name], structure)


LARGER: list[tuple[Any, Any]] = [
    ({"a": 0, "b": {"c": 0}}, {"a": 1, "b": {"c": 2, "d": 3}, "e": {"f": 4}}),
    ({"a": [0, {"b": 0}]}, {"a": (1, {"b": 2, "c": 3})}),
    ({"a": [0]}, {"a": [1, 2]}),
    (Point(0, 0), {"x": 1, "y": 2, "z": 3}),
    (Point(0, {"a": 0}), {"y": {"a": 1, "b": 2}}),
    (Point(0, 0), [1, 2]),
    ({"x": 0}, Point(1, 2)),
    ({"0": 0}, [1, 2]),
    ({"params": {"w": 0}}, State({"w": 1, "b": 2}, 3)),
    (State({"w": 0}), {"params": {"w": 1, "b": 2}, "step": 3, "more": 4}),
    (State({"w": 0}), State({"w": 1, "b": 2}, 3)),
    ({"a": None}, {"a": {"b": 1}, "c": 2}),
    ({"a": None}, {"a": 1}),
    ({"a": None}, {"a": [1]}),
    ({"a": 0}, {"a": None}),
    ({"a": {"b": 0}}, {"a": None}),
    ({"a": [0]}, {"a": None}),
    ({"a": 0}, {"a": {"b": 1}}),
    ({"a": "text"}, {"a": "other", "b": 1}),
    (FrozenDict({"a": 0}), {"a": 1, "b": 2}),
    (Pair(0, 0), Pair(1, 2)),
    (Pair(0, 0), [1, 2, 3]),
]


@pytest.mark.parametrize(("template", "structure"), LARGER)
def test_larger_tree_is_trimmed_as_by_orbax(template: Any, structure: Any) -> None:
    assert_trimmed_alike(template, structure)


@trees
def test_trees_are_merged_as_by_orbax(name: str) -> None:
    for other in TREES.values():
        assert_alike("merge_trees", TREES[name], other)
    assert_alike("merge_trees", TREES[name], TREES[name], overwrite=True)


@pytest.mark.parametrize(
    "merged",
    [
        (),
        ({"a": 1},),
        ({"a": 1}, {"b": 2}, {"c": {"d": 3}}),
        ({"a": {"b": 1}}, {"a": {"c": 2}}),
        ({"a": {"b": 1}}, {"a": {"b": 2}}),
        ({"a": 1}, {"a": None}),
        ({"a": [1, {"b": 2}]}, {"a": [None, {"c": 3}]}),
        ([1, 2], [3]),
        (Point(1, None), Point(None, 2)),
        (State({"a": 1}, None), State({"b": 2}, 3)),
        (Pair({"a": 1}, None), Pair({"b": 1}, 2)),
        ({"a": [1]}, {"a": (2,)}),
        ({"x": 1, "y": None}, Point(None, 2)),
        (Point(1, {"b": 1}), {"x": None, "y": {"c": 2}}),
        ({"z": 1}, Point(None, 2)),
        ({"params": {"b": 1}, "step": 3}, State({"w": 1})),
        (FrozenDict({"a": 1}), {"b": 2}),
    ],
)
@pytest.mark.parametrize("overwrite", [True, False])
def test_similar_trees_are_merged_as_by_orbax(merged: Any, overwrite: bool) -> None:
    assert_alike("merge_trees", *merged, overwrite=overwrite)
    assert_alike(
        "merge_trees", *merged, overwrite=overwrite, is_leaf=lambda x: isinstance(x, list | int)
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [([1, 2], {"a": 1}), ({"a": 1, "b": 2}, [3, 4]), ({"more": 1}, State(1)), (State(1), {"a": 1})],
)
def test_nodes_that_do_not_fit_are_not_merged(old: Any, new: Any) -> None:
    with pytest.raises(ValueError, match="cannot be merged"):
        orbit_ckpt.tree.merge_trees(old, new, overwrite=True)


@pytest.mark.parametrize(
    "shape", [(), (3,), (8,), (7, 16), (16, 16), (2, 24), (9, 15), (12, 4, 40), (0, 8)]
)
@pytest.mark.parametrize("count", [None, 6, 8])
def test_maximal_sharding_is_that_of_orbax(shape: tuple[int, ...], count: int | None) -> None:
    leaf = {"a": jax.ShapeDtypeStruct(shape, np.float32)}
    devices = None if count is None else jax.devices()[:count]
    ours = orbit_ckpt.arrays.construct_maximal_shardings(leaf, devices)["a"]
    theirs = orbax.arrays.construct_maximal_shardings(leaf, devices)["a"]
    assert ours.mesh == theirs.mesh
    assert ours.is_equivalent_to(theirs, len(shape))


def test_maximal_sharding_on_one_device_is_there() -> None:
    leaf = jax.ShapeDtypeStruct((8, 2), np.float32)
    sharding = orbit_ckpt.arrays.construct_maximal_shardings(leaf, jax.devices()[1:2])
    assert sharding.device_set == {jax.devices()[1]}


@pytest.mark.parametrize(
    "leaf",
    [
        np.ones((2, 3)),
        np.float32(1),
        True,
        jnp.ones(3),
        jax.ShapeDtypeStruct((2,), np.int8),
    ],
)
@pytest.mark.parametrize("support_format", [True, False])
@pytest.mark.parametrize("module", ["tree", "arrays", "utils"])
def test_abstract_leaf_is_that_of_orbax(leaf: Any, support_format: bool, module: str) -> None:
    options = {"support_format": support_format, "module": module}
    assert_alike("to_shape_dtype_struct", leaf, **options)
    assert_alike("to_shape_dtype_struct", leaf, scalar_dtype=float, **options)
    assert_alike("to_shape_dtype_struct", arr=leaf, dtype=jnp.bfloat16, **options)


def test_restore_arguments_are_made_abstract_as_by_orbax() -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    ours, theirs = (
        library.tree.to_shape_dtype_struct(
            library.ArrayRestoreArgs(global_shape=(4,), dtype=np.int8, sharding=sharding, **options)
        )
        for library, options in ((orbit_ckpt, {}), (orbax, {"shape": (4,)}))
    )
    assert ours == theirs


def test_metadata_is_the_tree_that_it_describes(tmp_path: Path) -> None:
    tree = {"a": {"b": np.arange(3)}, "c": [1.5, "text"], "d": None}
    orbax.PyTreeCheckpointer().save(tmp_path / "c", tree)
    found = []
    for library in (orbit_ckpt, orbax):
        checkpointer = library.Checkpointer(library.PyTreeCheckpointHandler())
        metadata = checkpointer.metadata(tmp_path / "c").item_metadata
        flat = library.tree.to_flat_dict(metadata, sep="/")
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(metadata)[0]]
        kinds = {name: type(leaf).__name__ for name, leaf in flat.items()}
        restored = library.tree.from_flat_dict(flat, metadata, sep="/")
        assert type(restored) is type(metadata)
        assert restored.tree == metadata.tree
        names = library.tree.serialize_tree(library.tree.get_param_names(metadata))
        found.append((paths, kinds, names))
    assert found[0] == found[1]


def test_constants_of_restore_arguments_are_those_of_orbax() -> None:
    ours, theirs = orbit_ckpt.checkpoint_utils, orbax.checkpoint_utils
    assert ours.PLACEHOLDER is theirs.PLACEHOLDER
    assert ours.STANDARD_ARRAY_TYPES == theirs.STANDARD_ARRAY_TYPES
