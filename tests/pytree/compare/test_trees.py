"""`diff`: what two checkpoints do not share."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.serialization import msgpack_serialize
from hypothesis import given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt._src.checkpointer import compare as entry
from orbit_ckpt._src.pytree.compare.report import LeafChange
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt.errors import CheckpointNotFoundError, IncompleteCheckpointError
from tests.cells import cells
from tests.interop.expected import checkpoints
from tests.support import checkpointer, put, scratch, unpack

NAN = math.nan


class Point(NamedTuple):
    x: object
    y: object


class Vector(NamedTuple):
    x: object
    y: object


class Empty(NamedTuple):
    pass


Diff = Callable[..., ocp.CheckpointDiff]


@pytest.fixture
def diff(tmp_path: Path) -> Diff:
    """Return a function that saves two trees and compares the checkpoints."""

    def of(a: object, b: object, **options: Any) -> ocp.CheckpointDiff:
        ocp.save(tmp_path / "a", a, overwrite=True)
        ocp.save(tmp_path / "b", b, overwrite=True)
        return ocp.diff(tmp_path / "a", tmp_path / "b", **options)

    return of


def rows(changes: Any) -> list[tuple[str, str, str]]:
    return [(change.path, change.what, change.detail) for change in changes]


def everything() -> dict[str, Any]:
    """Return a tree with every kind of leaf and container."""
    return {
        "array": np.arange(6, dtype=np.float32).reshape(2, 3),
        "bf16": jnp.ones((2, 2), jnp.bfloat16),
        "sharded": put(np.arange(16.0, dtype=np.float32), "x", x=8),
        "key": jax.random.key(0),
        "keys": jax.random.split(jax.random.key(1, impl="rbg"), 3),
        "int": 1,
        "float": 0.5,
        "bool": True,
        "complex": 1j,
        "numpy": np.int8(3),
        "text": "abc",
        "bytes": b"abc",
        "date": np.array(["2020-01-01"], "datetime64[s]"),
        "nan": np.array([NAN, 1.0]),
        "none": None,
        "empty": {"dict": {}, "list": [], "tuple": (), "namedtuple": Empty()},
        "list": [1, 2],
        "tuple": (1, 2),
        "point": Point(1, 2),
        "int keys": {0: 1, 10: 2},
        "nothing": np.zeros((0, 3)),
    }


@pytest.mark.parametrize("values", [False, True])
def test_equal_trees_have_no_difference(diff: Diff, values: bool) -> None:
    found = diff(everything(), everything(), values=values)
    assert found.is_same
    assert not found
    assert (found.only_in_a, found.only_in_b, found.changed, found.notes) == ((), (), (), ())
    assert found.common == 28
    assert found.has_values is values


def test_text_of_equal_trees_says_what_was_compared(diff: Diff, tmp_path: Path) -> None:
    head = f"a: {tmp_path}/a\nb: {tmp_path}/b\n"
    same = "2 leaves in both, 2 of them the same"
    tree = {"w": np.ones(3), "step": 1}
    assert str(diff(tree, tree)) == f"{head}{same}; values not compared (values=True)"
    assert str(diff(tree, tree, values=True)) == head + same


NESTED = {
    "params": {
        "layers": [{"w": np.arange(6.0).reshape(2, 3)}, {"w": np.ones(2)}],
        "v.1": np.ones(3),
    },
    "step": 3,
}


@pytest.mark.parametrize("values", [False, True])
def test_a_checkpoint_and_its_own_safetensors_have_the_same_leaves(
    tmp_path: Path, values: bool
) -> None:
    ocp.save(tmp_path / "a", NESTED)
    ocp.convert(tmp_path / "a", tmp_path / "b.safetensors", to="safetensors")
    found = ocp.diff(tmp_path / "a", tmp_path / "b.safetensors", values=values)
    assert (found.is_same, found.common) == (True, 4)
    assert [str(note) for note in found.notes] == [
        "<root>: layout nested -> flat, keys joined by '.'"
    ]
    back = ocp.diff(tmp_path / "b.safetensors", tmp_path / "a", values=values)
    assert (back.is_same, back.common) == (True, 4)


def test_values_of_a_nested_and_a_flat_tree_are_compared_under_the_names_of_the_first(
    diff: Diff,
) -> None:
    nested = {"a": {"w": np.ones(3), "b": np.ones(2)}, "step": 3}
    flat = {"a.w": np.array([1, 2, 1.0]), "a.b": np.ones(2), "step": 3}
    assert [(c.path, c.what) for c in diff(nested, flat, values=True).changed] == [
        ("a/w", "values")
    ]
    assert [(c.path, c.what) for c in diff(flat, nested, values=True).changed] == [
        ("a.w", "values")
    ]


def test_a_flat_tree_with_keys_joined_by_slashes_is_compared_with_a_nested_one(diff: Diff) -> None:
    nested = {"a": {"w": np.ones(3), "b": np.ones(2)}}
    found = diff(nested, {"a/w": np.ones(3), "a/b": np.ones(2), "more": 1})
    assert (found.common, [leaf.path for leaf in found.only_in_b]) == (2, ["more"])


def test_keys_with_dots_that_do_not_tell_which_leaf_is_meant_match_none(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.msgpack"
    file.write_bytes(
        msgpack_serialize({"a": {"b.c": np.ones(2), "d": np.ones(1)}, "a.b": {"c": np.ones(2)}})
    )
    ocp.save(tmp_path / "b", {"a.b.c": np.ones(2), "a.d": np.ones(1)})
    found = ocp.diff(file, tmp_path / "b")
    assert [leaf.path for leaf in found.only_in_a] == ["a/b.c", "a.b/c"]
    assert [leaf.path for leaf in found.only_in_b] == ["a.b.c"]


def test_trees_that_are_both_nested_are_compared_key_by_key(diff: Diff) -> None:
    found = diff({"a": {"b.c": 1}, "d": {"e": 1}}, {"a": {"b": {"c": 1}}, "d": {"e": 1}})
    assert ([x.path for x in found.only_in_a], [x.path for x in found.only_in_b]) == (
        ["a/b.c"],
        ["a/b/c"],
    )
    assert not found.notes


def test_leaves_of_one_tree_only_are_listed_with_the_name_they_likely_have(diff: Diff) -> None:
    w, b = np.ones((4, 8), np.float32), np.ones(8, np.float32)
    found = diff(
        {"dense": {"kernel": w, "bias": b}, "old": 1, "none": None},
        {"Dense": {"kernel": w, "bias": b}, "new": "x", "more": {}},
    )
    assert [(leaf.path, leaf.leaf, leaf.renamed) for leaf in found.only_in_a] == [
        ("dense/bias", "float32[8]", "Dense/bias"),
        ("dense/kernel", "float32[4, 8]", "Dense/kernel"),
        ("none", "None", None),
        ("old", "scalar int64", None),
    ]
    assert [(leaf.path, leaf.leaf, leaf.renamed) for leaf in found.only_in_b] == [
        ("Dense/bias", "float32[8]", "dense/bias"),
        ("Dense/kernel", "float32[4, 8]", "dense/kernel"),
        ("more", "empty dict", None),
        ("new", "str", None),
    ]
    assert not found.changed
    assert found
    assert not found.is_same


CHANGES = {
    "shape": (np.zeros((2, 3)), np.zeros((3, 2)), "shape", "(2, 3) -> (3, 2)"),
    "dtype": (np.zeros(3), np.zeros(3, np.float32), "dtype", "float64 -> float32"),
    "scalar's dtype": (1, 1.0, "dtype", "int64 -> float64"),
    "bool": (True, 1, "dtype", "bool -> int64"),
    "keys": (
        jax.random.key(0),
        jax.random.key(0, impl="rbg"),
        "dtype",
        "key<fry> -> key<rbg>",
    ),
    "array and scalar": (np.ones(()), 1.0, "kind", "float64[] -> scalar float64"),
    "array and string": (np.ones(2), "x", "kind", "float64[2] -> str"),
    "string and bytes": ("abc", b"abc", "kind", "str -> bytes uint8[3]"),
    "bytes and array": (b"a", np.ones(1, np.uint8), "kind", "bytes uint8[1] -> uint8[1]"),
    "length of bytes": (b"abc", b"ab", "shape", "(3,) -> (2,)"),
    "None and scalar": (None, 1, "kind", "None -> scalar int64"),
    "empty containers": ({}, [], "kind", "empty dict -> empty list"),
    "None and empty": (None, (), "kind", "None -> empty tuple"),
    "list and tuple": ([1, 2], (1, 2), "container", "list -> tuple"),
    "dict and namedtuple": (
        {"x": 1, "y": 2},
        Point(1, 2),
        "container",
        f"dict -> namedtuple {__name__}:Point",
    ),
    "namedtuples": (
        Vector(1, 2),
        Point(1, 2),
        "container",
        f"namedtuple {__name__}:Vector -> namedtuple {__name__}:Point",
    ),
    "dict and list": ({"0": 1}, [1], "container", "dict -> list"),
    "kinds of keys": ({"0": 1}, {0: 1}, "container", "dict -> dict with keys of int"),
}


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_leaf_is_told(diff: Diff, name: str, values: bool) -> None:
    a, b, what, detail = CHANGES[name]
    found = diff({"z": {"w": a}, "other": 1}, {"z": {"w": b}, "other": 1}, values=values)
    changed = [change for change in found.changed if change.what != "values"]
    assert rows(changed) == [("z/w", what, detail)]
    assert not found.only_in_a
    assert not found.only_in_b


def test_shape_and_dtype_are_told_both_and_are_shapes_and_dtypes(diff: Diff) -> None:
    found = diff({"w": np.zeros((2, 3))}, {"w": np.zeros(4, np.int8)})
    assert found.changed == (
        LeafChange("w", "shape", (2, 3), (4,)),
        LeafChange("w", "dtype", np.dtype(np.float64), np.dtype(np.int8)),
    )


def test_a_bare_leaf_is_called_root(diff: Diff) -> None:
    found = diff(np.zeros(3), np.ones(3), values=True)
    assert [change.path for change in found.changed] == ["<root>"]


NOTES = {
    "libraries": (np.ones(3, np.float32), jnp.ones(3), "type", "np.ndarray -> jax.Array"),
    "scalars": (3, np.int64(3), "type", "Python scalar -> numpy scalar"),
    "strings": ("x", np.str_("x"), "type", "str -> np.str_"),
    "shardings": (
        put(np.ones(8, np.float32), "x", x=8),
        put(np.ones(8, np.float32), None, x=4),
        "sharding",
        "('x',) over x=8 (devices 0-7) -> (None,) over x=4 (devices 0-3)",
    ),
    "signs of zero": (np.zeros(2), -np.zeros(2), "bits", "all 2 equal"),
}


@pytest.mark.parametrize("name", NOTES)
def test_what_is_noted_is_no_difference(diff: Diff, name: str) -> None:
    a, b, what, detail = NOTES[name]
    found = diff({"w": a}, {"w": b}, values=True)
    assert found.is_same
    assert (what, detail) in [(note.what, note.detail) for note in found.notes]


def test_listing(diff: Diff, tmp_path: Path) -> None:
    found = diff(
        {"w": np.zeros((2, 3)), "step": 1, "dense": {"kernel": np.ones(3)}, "s": (1, 2)},
        {"w": np.eye(2, 3), "step": 20, "dense": {"kernels": np.ones(3)}, "s": [1, 2]},
        values=True,
    )
    assert str(found).splitlines() == [
        f"a: {tmp_path}/a",
        f"b: {tmp_path}/b",
        "4 leaves in both, 2 of them the same",
        "only in a: 1",
        "  dense/kernel  float64[3]  likely dense/kernels in b",
        "only in b: 1",
        "  dense/kernels  float64[3]  likely dense/kernel in a",
        "changed from a to b: 3",
        "  s     container  tuple -> list",
        "  step  values     1 -> 20",
        "  w     values     2 of 6 differ, max |a - b| 1 at [0, 0] (0 -> 1)",
    ]


@pytest.mark.parametrize(
    ("a", "b", "detail"),
    [
        ("", "x", "'' -> 'x'"),
        ("a" * 50, "b" * 40, f"'{'a' * 40}'... (50 long) -> '{'b' * 40}'"),
        (
            "x" * 99 + "old",
            "x" * 99 + "new",
            f"from character 79: '{'x' * 20}old' -> '{'x' * 20}new'",
        ),
    ],
)
def test_of_long_strings_what_differs_is_shown(diff: Diff, a: str, b: str, detail: str) -> None:
    (change,) = diff({"s": a}, {"s": b}, values=True).changed
    assert (change.detail, change.a, change.b) == (detail, a, b)
    assert str(change) == f"s: values {detail}"


def test_a_long_listing_is_cut_and_says_so(diff: Diff) -> None:
    found = diff({f"a{i}": i for i in range(30)}, {f"a{i}": float(i) for i in range(30)})
    text = str(found).splitlines()
    assert len(text) == 3 + 1 + 20 + 1
    assert text[-1] == "  ... and 10 more"
    assert len(found.describe(most=None).splitlines()) == 3 + 1 + 30


def test_containers_count_only_where_both_checkpoints_record_them(tmp_path: Path) -> None:
    tree = {"list": [1, 2], "tuple": (1, 2), "point": Point(1, 2)}
    ocp.save(tmp_path / "a", tree)
    checkpointer(rich_types=False).save(tmp_path / "b", tree)
    assert not ocp.diff(tmp_path / "a", tmp_path / "b")
    checkpointer(rich_types=False).save(tmp_path / "c", {**tree, "tuple": {"0": 1, "1": 2}})
    found = ocp.diff(tmp_path / "a", tmp_path / "c")
    assert rows(found.changed) == [("tuple", "container", "tuple -> dict")]


def test_steps_of_a_manager_and_their_items_are_compared(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            items = ocp.args.Composite(state=ocp.args.StandardSave({"step": step}))
            manager.save(step, args=items)
    for pair in (("1", "2"), ("1/state", "2/state"), ("1", "2/state")):
        found = ocp.diff(*(tmp_path / path for path in pair), values=True)
        assert rows(found.changed) == [("step", "values", "1 -> 2")]


def test_a_path_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"w": 1})
    with pytest.raises(CheckpointNotFoundError, match=f"No checkpoint at {tmp_path}/b"):
        ocp.diff(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c.orbax-checkpoint-tmp-1").mkdir()
    with pytest.raises(IncompleteCheckpointError):
        ocp.diff(tmp_path / "c.orbax-checkpoint-tmp-1", tmp_path / "a")


def test_paths_are_given_as_for_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ocp.save("a", {"w": 1})
    found = ocp.diff("a", str(tmp_path / "a"))
    assert (found.a, found.b) == (tmp_path / "a", tmp_path / "a")


def test_structure_is_compared_without_reading_values(tmp_path: Path) -> None:
    for name in "ab":
        checkpointer(use_ocdbt=False).save(tmp_path / name, {"w": np.arange(4096.0)})
    for file in (tmp_path / "b" / "w").rglob("c/*"):
        file.unlink()
    assert not ocp.diff(tmp_path / "a", tmp_path / "b")


def test_a_checkpoint_that_is_replaced_meanwhile_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ocp.save(tmp_path / "a", {"w": 1})
    ocp.save(tmp_path / "b", {"w": 2})
    attempts: list[int] = []
    original = entry.compare_checkpoints

    def replacing(*args: Any, **options: Any) -> ocp.CheckpointDiff:
        found = original(*args, **options)
        attempts.append(len(attempts))
        if len(attempts) < 3:
            directory = tmp_path / "ab"[len(attempts) % 2]
            ocp.save(directory, {"w": 3}, overwrite=True)
        return found

    monkeypatch.setattr(entry, "compare_checkpoints", replacing)
    assert ocp.diff(tmp_path / "a", tmp_path / "b", values=True).is_same
    assert len(attempts) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "release", cells(["0.2.7", "0.5.23", "0.12.8"], lambda release: release != "0.5.23")
)
def test_checkpoints_of_released_versions_of_orbax_are_compared(
    release: str, tmp_path: Path
) -> None:
    unpack(f"orbax-{release}.tar.gz", tmp_path)
    compared = 0
    for name, path, _ in checkpoints(tmp_path):
        with jax.enable_x64(True):
            ocp.save(tmp_path / "again", ocp.load(path), overwrite=True)
        found = ocp.diff(path, tmp_path / "again", values=True)
        # Orbax's scalars come back as Python's, and namedtuples of unknown classes under new names
        names = {change.path for change in found.changed if change.what != "container"}
        expected = {"empty_namedtuple", "optimizer/1"}
        assert all(path in expected or "npscalar" in path for path in names), (name, str(found))
        assert not found.only_in_a
        assert not found.only_in_b
        assert all(change.what != "values" for change in found.changed)
        assert {note.what for note in found.notes} <= {"type", "values"}
        compared += found.common
    assert compared > 500


def leaves() -> st.SearchStrategy[object]:
    numbers = st.sampled_from([0.0, 1.0, NAN])
    shapes = st.sampled_from([(), (1,), (2,), (1, 2)])
    arrays = st.builds(
        lambda number, shape, dtype: (
            np.full(shape, np.nan_to_num(number), dtype)
            if dtype != np.float32
            else np.full(shape, number, dtype)
        ),
        numbers,
        shapes,
        st.sampled_from([np.float32, np.int32]),
    )
    scalars = st.sampled_from([0, 1, True, False, "", "a", b"", b"a", None])
    return st.one_of(numbers, scalars, st.builds(dict), st.builds(list), st.builds(tuple), arrays)


def containers(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(
        st.dictionaries(st.sampled_from("01x"), inner, max_size=3),
        st.dictionaries(st.integers(0, 1), inner, max_size=2),
        st.lists(inner, max_size=2),
        st.tuples(inner, inner),
        st.builds(Point, inner, inner),
        st.builds(Vector, inner, inner),
    )


trees = st.recursive(leaves(), containers, max_leaves=6)


@st.composite
def pairs_of_trees(draw: st.DrawFn) -> tuple[object, object]:
    """Draw two trees that are equal, differ in one leaf, or have nothing to do with one another."""
    tree = draw(trees)
    flat = flatten(tree)
    match draw(st.sampled_from(["equal", "one leaf", "other"])):
        case "equal":
            return tree, flat.unflatten(flat.values)
        case "one leaf":
            values = list(flat.values)
            values[draw(st.integers(0, len(values) - 1))] = draw(leaves())
            return tree, flat.unflatten(values)
        case _:
            return tree, draw(trees)


def plain(tree: object) -> object:
    """Return what makes a tree what it is, to be compared with `==`."""
    match tree:
        case np.ndarray():
            numbers = np.where(np.isnan(tree), -1, tree).tolist()
            return "array", tree.dtype.name, tree.shape, numbers
        case float():
            return "float", "nan" if math.isnan(tree) else tree
        case Point() | Vector() | list() | tuple():
            return type(tree).__name__, [plain(child) for child in tree]
        case dict():
            children = {(type(key), key): plain(child) for key, child in tree.items()}
            return "dict", children
        case _:
            return type(tree).__name__, tree


@pytest.mark.slow
@given(pairs_of_trees())
def test_there_is_no_difference_if_and_only_if_trees_are_equal(
    pair: tuple[object, object],
) -> None:
    with scratch() as path:
        for name, tree in zip("ab", pair, strict=True):
            ocp.save(path.with_name(name), tree)
        found = ocp.diff(path.with_name("a"), path.with_name("b"), values=True)
        back = ocp.diff(path.with_name("b"), path.with_name("a"), values=True)
    assert found.is_same == (plain(pair[0]) == plain(pair[1])), str(found)
    assert len(found.only_in_a) == len(back.only_in_b)
    assert [(c.path, c.what) for c in found.changed] == [(c.path, c.what) for c in back.changed]
