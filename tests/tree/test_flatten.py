from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from orbit_ckpt._src.tree.build import build_tree, is_namedtuple
from orbit_ckpt._src.tree.flatten import flatten, is_empty_node, is_leaf


class Pair(NamedTuple):
    first: object
    second: object


class Nothing(NamedTuple):
    pass


dicts_and_lists = st.recursive(
    st.integers() | st.none() | st.just({}) | st.just([]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3)
        | st.dictionaries(st.integers(0, 30), inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)
trees = st.recursive(
    dicts_and_lists,
    lambda inner: st.builds(Pair, inner, inner) | st.tuples(inner, inner) | st.lists(inner),
    max_leaves=4,
)


@pytest.mark.parametrize(
    "empty", [None, {}, [], (), Nothing(), optax.EmptyState()], ids=lambda e: type(e).__name__
)
def test_empty_container_is_a_leaf(empty: object) -> None:
    assert is_empty_node(empty)
    assert flatten({"a": empty, "b": 1}).values == [empty, 1]


@pytest.mark.parametrize(
    "value", [0, "", b"", np.zeros(0), [None], {"a": {}}, Pair(None, None)], ids=repr
)
def test_value_without_content_is_not_an_empty_container(value: object) -> None:
    assert not is_empty_node(value)


@given(trees)
def test_unflatten_inverts_flatten(tree: object) -> None:
    flat = flatten(tree)
    rebuilt = flat.unflatten(flat.values)
    assert rebuilt == tree
    assert jax.tree.structure(rebuilt) == jax.tree.structure(tree)


@given(dicts_and_lists)
def test_dicts_and_lists_are_rebuilt_from_their_paths(tree: object) -> None:
    flat = flatten(tree)
    assert build_tree(zip(flat.paths, flat.values, strict=True)) == tree


def test_keys_that_do_not_sort_are_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match=r"cannot be flattened.*give keys of one type"):
        flatten({1: 0, "a": 0})


def test_only_namedtuples_are_namedtuples() -> None:
    assert is_namedtuple(Pair(1, 2))
    assert not is_namedtuple((1, 2))
    assert not is_namedtuple({"first": 1})


def test_attributes_become_dicts_and_flat_children_become_lists() -> None:
    leaves = [
        ((DictKey("state"), GetAttrKey("mu")), 1),
        ((DictKey("node"), FlattenedIndexKey(0)), 2),
    ]
    assert build_tree(leaves) == {"state": {"mu": 1}, "node": [2]}


def test_list_elements_may_come_in_any_order() -> None:
    leaves = [((SequenceKey(i),), i) for i in reversed(range(12))]
    assert build_tree(leaves) == list(range(12))


def test_tree_without_leaves_is_an_empty_dict() -> None:
    assert build_tree([]) == {}


@pytest.mark.parametrize("reverse", [False, True])
def test_empty_container_gives_way_to_children_at_its_path(reverse: bool) -> None:
    leaves = [((DictKey("a"),), {}), ((DictKey("a"), DictKey("b")), 1)]
    assert build_tree(leaves[::-1] if reverse else leaves) == {"a": {"b": 1}}


A, B, FIRST, THIRD = DictKey("a"), DictKey("b"), SequenceKey(0), SequenceKey(2)


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ([((A,), 1), ((A,), 2)], "a occurs twice"),
        ([((A,), 1), ((A, B), 2)], "a is a leaf and has children"),
        ([((A, B), 1), ((A,), 2)], "a is a leaf and has children"),
        ([((A, B), 1), ((A, FIRST), 2)], "a has both positions and names"),
        ([((A, FIRST), 1), ((A, THIRD), 2)], "a has 2 elements but none at index '1'"),
    ],
)
def test_paths_that_make_no_tree_are_an_error(
    leaves: list[tuple[tuple[object, ...], object]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_tree(leaves)


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        ({1: 0}, ("1",)),
        ({True: 0}, ("True",)),
        ({1.0: 0}, ("1.0",)),
        ([0], ("0",)),
        ((0,), ("0",)),
    ],
)
def test_equal_keys_that_are_not_the_same_keep_their_names(
    tree: object, names: tuple[str, ...]
) -> None:
    assert flatten(tree).names == [names]
    assert flatten(tree).names == [names]


def test_nodes_whose_keys_come_from_their_children_are_asked_every_time() -> None:
    class Named:
        def __init__(self, children: list[str]) -> None:
            self.children = children

    jax.tree_util.register_pytree_with_keys(
        Named,
        lambda node: ([(DictKey(child[:1]), child) for child in node.children], None),
        lambda _, children: Named(list(children)),
    )
    assert flatten(Named(["a1", "b1"])).names == [("a",), ("b",)]
    assert flatten(Named(["c1", "d1"])).names == [("c",), ("d",)]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Kept:
    a: object
    b: object
    is_checkpoint_leaf: ClassVar[bool] = True


def test_a_marked_node_is_a_leaf_which_jax_takes_apart() -> None:
    leaf = Kept(1, [])
    tree = {"x": [leaf], "y": 2}
    flat = flatten(tree)
    assert flat.values == [leaf, 2]
    assert flat.names == [("x", "0"), ("y",)]
    assert flat.values_of({"x": [Kept(3, 4)], "y": 5}) == [Kept(3, 4), 5]
    assert flat.unflatten(flat.values) == tree
    assert is_leaf(leaf)
    assert not is_empty_node(Kept([], []))
    assert len(jax.tree.leaves(tree)) == 2
