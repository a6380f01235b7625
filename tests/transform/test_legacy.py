"""Orbax's transforms: what ours make of a checkpoint is what Orbax's make of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import SingleDeviceSharding

import orbit_ckpt as ocp
from orbit_ckpt.errors import CorruptionError, TransformError, TreeMismatchError
from tests.soak import rounds
from tests.support import checkpointer, put, scratch

pytestmark = pytest.mark.filterwarnings("ignore:.*transformations API:Warning")


def ints(*values: int) -> np.ndarray:
    return np.array(values)


Z = ints(-1)
ORIGINAL = {"a": ints(1, 2), "b": {"c": ints(3), "d": ints(4, 5)}, "f": ints(6)}
LAYERS = {f"layer_{i}": {"w": ints(2 * i + 1), "b": ints(2 * i + 2)} for i in range(2)}
NESTED = {"opt": ({"m": ints(1)}, {}, (ints(2), ints(3))), "none": None}

Library = Any  # orbax.checkpoint or orbit_ckpt
Rules = Callable[[Library], Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of the trees that tests restore, written by ours."""
    directory = tmp_path_factory.mktemp("saved")
    trees = {"original": ORIGINAL, "layers": LAYERS, "nested": NESTED}
    for name, tree in trees.items():
        checkpointer().save(directory / name, tree)
    return {name: directory / name for name in trees}


def restored(
    library: Library,
    path: Path,
    transforms: Rules,
    item: object,
    default: bool = True,
    restore_args: Any = None,
) -> Any:
    if restore_args is None:
        restore_args = jax.tree.map(lambda _: library.RestoreArgs(), item)
    else:
        restore_args = restore_args(library)
    args = library.args.PyTreeRestore(
        item,
        restore_args=restore_args,
        transforms=transforms(library),
        transforms_default_to_original=default,
    )
    return library.Checkpointer(library.PyTreeCheckpointHandler()).restore(path, args=args)


def assert_same(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for found, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert type(found) is type(wanted)
        np.testing.assert_array_equal(found, wanted, strict=isinstance(wanted, np.ndarray))


def times(count: int) -> Callable[[Any], Any]:
    return lambda value: value * count


def many(fn: Callable[..., Any], *inputs: str) -> Rules:
    """Return the transform that computes with some leaves."""
    return lambda m: m.RestoreTransform(
        multi_value_fn=fn, multi_value_fn_input_args={name: m.RestoreArgs() for name in inputs}
    )


# The table of worked examples: name -> checkpoint, transforms, item, default, result
EXAMPLES: dict[str, tuple[str, Rules, Any, bool, Any]] = {
    "W01 rename": (
        "original",
        lambda m: {"a1": m.Transform(original_key="a")},
        {"a1": Z, "f": Z},
        True,
        {"a1": ints(1, 2), "f": ints(6)},
    ),
    "W02 groups": (
        "layers",
        lambda m: {r"block_(\d+)/(.*)": m.Transform(original_key=r"layer_\1/\2")},
        {f"block_{i}": {"w": Z, "b": Z} for i in range(2)},
        True,
        {f"block_{i}": LAYERS[f"layer_{i}"] for i in range(2)},
    ),
    "W02 groups, transforms nested": (
        "layers",
        lambda m: {r"block_(\d+)": {"(.*)": m.Transform(original_key=r"layer_\1/\2")}},
        {f"block_{i}": {"w": Z, "b": Z} for i in range(2)},
        True,
        {f"block_{i}": LAYERS[f"layer_{i}"] for i in range(2)},
    ),
    "W03 swap and copy": (
        "original",
        lambda m: {
            "a": m.Transform(original_key="f"),
            "f": m.Transform(original_key="a"),
            "c2": m.Transform(original_key="b/c"),
        },
        {"a": Z, "f": Z, "c2": Z},
        True,
        {"a": ints(6), "f": ints(1, 2), "c2": ints(3)},
    ),
    "W04 value_fn": (
        "original",
        lambda m: {
            "a": m.Transform(value_fn=times(10)),
            "x": m.Transform(original_key="f", value_fn=lambda value: value + 1),
        },
        {"a": Z, "x": Z, "b": {"c": Z, "d": Z}},
        True,
        {"a": ints(10, 20), "x": ints(7), "b": ORIGINAL["b"]},
    ),
    "W05 multi_value_fn": (
        "original",
        lambda m: {r"s(\d)": many(lambda k, t, _: t["b"]["d"] * int(k[1]) + t["a"], "b/d", "a")(m)},
        {"s1": Z, "s2": Z},
        True,
        {"s1": ints(5, 7), "s2": ints(9, 12)},
    ),
    "W06 fallback": (
        "original",
        lambda m: {n: m.Transform(use_fallback=True) for n in ("a", "new")},
        {"a": ints(100), "new": ints(200), "f": Z},
        True,
        {"a": ints(100), "new": ints(200), "f": ints(6)},
    ),
    "W07 fallback, default False": (
        "original",
        lambda m: {"a": m.Transform(use_fallback=True)},
        {"a": ints(100), "f": ints(300), "g": ints(400)},
        False,
        {"a": ints(1, 2), "f": ints(300), "g": ints(400)},
    ),
    "W08 unmatched": (
        "original",
        lambda _: {},
        {"a": Z, "g": ints(7)},
        True,
        {"a": ints(1, 2), "g": ints(7)},
    ),
    "W09 unmatched, default False": (
        "original",
        lambda _: {},
        {"a": ints(100), "g": ints(7)},
        False,
        {"a": ints(100), "g": ints(7)},
    ),
    "W10 two match": (
        "original",
        lambda m: {
            "x.*": m.Transform(original_key="a"),
            ".*1": m.Transform(original_key="f"),
        },
        {"x1": Z},
        True,
        {"x1": ints(1, 2)},
    ),
    "W10 fallback after a match": (
        "original",
        lambda m: {
            "x.*": m.Transform(use_fallback=True),
            ".*1": m.Transform(original_key="f"),
        },
        {"x1": Z},
        True,
        {"x1": ints(6)},
    ),
    "W19 inputs match nothing": (
        "original",
        lambda m: {"s": many(lambda *_: 0, "nope.*")(m)},
        {"s": Z},
        True,
        {"s": 0},
    ),
    "W20 transform matches nothing": (
        "original",
        lambda m: {"zzz": m.Transform(original_key="nope")},
        {"a": Z},
        True,
        {"a": ints(1, 2)},
    ),
    "W22 containers of the item": (
        "original",
        lambda m: {"t/0": m.Transform(original_key="a"), "t/1": m.Transform(original_key="f")},
        {"t": (Z, Z, {}, None), "e": []},
        True,
        {"t": (ints(1, 2), ints(6), {}, None), "e": []},
    ),
    "lists in the tree of inputs": (
        "nested",
        lambda m: {"s": many(lambda _k, t, _: t["opt"][2][1] + t["opt"][0]["m"], "opt/.*")(m)},
        {"s": Z},
        True,
        {"s": ints(4)},
    ),
    "a list of which one element is an input": (
        "nested",
        lambda m: {"s": many(lambda _k, t, _: t["opt"][-1][-1] * 2, "opt/2/1")(m)},
        {"s": Z},
        True,
        {"s": ints(6)},
    ),
    "result is a tree": (
        "original",
        lambda m: {"s": many(lambda _k, t, _: {"x": t["b"]["d"], "y": [t["a"]]}, "b/.*|a")(m)},
        {"s": Z},
        True,
        {"s": {"x": ints(4, 5), "y": [ints(1, 2)]}},
    ),
    "one transform alone": (
        "original",
        lambda m: m.Transform(original_key="a"),
        Z,
        True,
        ints(1, 2),
    ),
    "no leaf in the item": ("original", lambda _: {}, {}, True, {}),
    "unused empty container in the checkpoint": (
        "nested",
        lambda m: {"x": m.Transform(original_key="opt/0/m")},
        {"x": Z, "opt": [Z, {}]},
        True,
        {"x": ints(1), "opt": [Z, {}]},
    ),
    "Ellipsis in the item": ("original", lambda _: {}, {"a": ..., "g": ...}, True, None),
}


@pytest.mark.interop
@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_example_gives_what_orbax_gives(saved: dict[str, Path], name: str) -> None:
    tree, transforms, item, default, expected = EXAMPLES[name]
    ours = restored(ocp, saved[tree], transforms, item, default)
    if expected is not None:
        assert_same(ours, expected)
    assert_same(ours, restored(orbax, saved[tree], transforms, item, default))


FAILING: dict[str, tuple[Rules, Any, bool, str]] = {
    "W11 source is missing": (
        lambda m: {"x": m.Transform(original_key="nope")},
        {"x": Z},
        True,
        'Transformation key "nope" not found in origin tree.',
    ),
    "an earlier match is missing": (
        lambda m: {"x": m.Transform(original_key="nope"), "x.*": m.Transform(original_key="a")},
        {"x": Z},
        True,
        'Transformation key "nope" not found in origin tree.',
    ),
    "own name is missing": (
        lambda m: {"x": m.Transform(value_fn=times(2))},
        {"x": Z},
        True,
        'Transformation key "x" not found in origin tree.',
    ),
    "W12 no inputs": (
        lambda m: {"s": m.RestoreTransform(multi_value_fn=lambda *_: 1)},
        {"s": Z},
        True,
        "`multi_value_fn` was specified, but `multi_value_fn_input_args` were not.",
    ),
    "W13 fallback is missing": (
        lambda m: {"new": m.Transform(use_fallback=True)},
        {"new": Z},
        False,
        "new not found in origin tree (`use_fallback` requested).",
    ),
    "W14 plain transform": (
        lambda m: {"s": m.Transform(multi_value_fn=lambda *_: 1)},
        {"s": Z},
        True,
        "Must use RestoreTransform in order to use multi_value_fn during restore.",
    ),
    "W15 no item": (
        lambda _: {},
        None,
        True,
        "If providing `transforms`, must provide `item` matching structure of expected result.",
    ),
    "W16 subtree": (
        lambda m: {"bb": m.Transform(original_key="b")},
        {"bb": Z},
        True,
        'Transformation key "b" not found in origin tree.',
    ),
}


@pytest.mark.interop
@pytest.mark.parametrize("name", FAILING)
def test_worked_example_fails_with_the_words_of_orbax(saved: dict[str, Path], name: str) -> None:
    transforms, item, default, message = FAILING[name]
    for library in (ocp, orbax):
        with pytest.raises(ValueError, match=re.escape(message)):
            restored(library, saved["original"], transforms, item, default)


# What differs from Orbax on purpose


def test_value_fn_that_needs_two_arguments_gets_restore_args(saved: dict[str, Path]) -> None:
    """W17; in Orbax a TypeError, although its documentation has this form."""

    def transforms(m: Library) -> Any:
        return {
            "a": m.RestoreTransform(value_fn=lambda value, args: value.astype(args.dtype) / 2),
            "f": m.RestoreTransform(value_fn=lambda value, scale=3: value * scale),
        }

    args = {"a": ocp.RestoreArgs(dtype=np.float32)}
    found = restored(ocp, saved["original"], transforms, {"a": Z, "f": Z}, True, lambda _: args)
    assert_same(found, {"a": np.array([0.5, 1], np.float32), "f": ints(18)})


@pytest.mark.parametrize(
    "fn",
    [
        lambda _k, t, _a: t["f"] * 2,
        lambda _k, t, _a: 2 * t["f"],
        lambda _k, t, _a: t["a"] + t["f"],
        lambda _k, t, _a: np.asarray(t["f"]),
        lambda _k, t, _a: jnp.asarray(t["f"]),
        lambda _k, t, _a: t["f"].shape,
        lambda _k, t, _a: t["f"],
        lambda _k, t, _a: {"x": [t["b"]]},
        lambda _k, t, _a: sum(jax.tree.leaves(t)),
    ],
    ids=range(9),
)
def test_use_of_an_undeclared_input_is_an_error(saved: dict[str, Path], fn: Any) -> None:
    """W18; in Orbax the function is given an object of its metadata."""
    with pytest.raises(TransformError, match=r"(f|b/c|b/d): multi_value_fn uses .* Add it there"):
        restored(ocp, saved["original"], lambda m: {"s": many(fn, "a")(m)}, {"s": Z})


def test_tuple_is_a_key(saved: dict[str, Path]) -> None:
    """In Orbax a TypeError, although its types allow it."""

    def transforms(m: Library) -> Any:
        return {r"(\w)2": m.Transform(original_key=("b", r"\1"))}

    found = restored(ocp, saved["original"], transforms, {"c2": Z, "d2": Z})
    assert_same(found, {"c2": ints(3), "d2": ints(4, 5)})


def test_reference_to_a_group_that_does_not_exist_is_an_error(saved: dict[str, Path]) -> None:
    """W21; `re.error` in Orbax."""

    def rules(m: Library) -> Any:
        return {"x(.)": m.Transform(original_key=r"\2")}

    with pytest.raises(TransformError, match=r"group reference 2 at position 1\..*the 1 group"):
        restored(ocp, saved["original"], rules, {"x1": Z})
    with pytest.raises(TransformError, match="no regular expression"):
        restored(ocp, saved["original"], lambda m: {"x(": m.Transform()}, {"x(": Z})


def test_restore_args_may_be_missing(saved: dict[str, Path]) -> None:
    """ORB-45; in Orbax a KeyError."""
    got: list[object] = []

    def fn(key: str, tree: Any, args: object) -> Any:
        got.extend([key, args])
        return tree["f"]

    transforms = {"x": ocp.Transform(original_key="a"), "s": many(fn, "f")(ocp)}
    args = ocp.args.PyTreeRestore({"x": Z, "s": Z}, transforms=transforms)
    assert_same(
        checkpointer().restore(saved["original"], args=args), {"x": ints(1, 2), "s": ints(6)}
    )
    assert got == ["s", ocp.RestoreArgs()]


def test_every_use_of_a_leaf_has_its_own_restore_args(saved: dict[str, Path]) -> None:
    """In Orbax all uses have the restore args of the first one, so that `f` is float16 too."""

    def transforms(m: Library) -> Any:
        return {
            "copy": m.Transform(original_key="f"),
            "half": m.Transform(original_key="f", value_fn=lambda value: value / 2),
            "sum": m.RestoreTransform(
                multi_value_fn=lambda _k, t, _a: t["f"] + t["f"],
                multi_value_fn_input_args={"f": m.RestoreArgs(dtype=np.float64)},
            ),
        }

    dtypes = {"copy": np.float16, "half": np.float32, "sum": np.int8, "f": np.int32}

    def args(m: Library) -> Any:
        return {n: m.RestoreArgs(dtype=d) for n, d in dtypes.items()}

    item = dict.fromkeys(dtypes, Z)
    found = restored(ocp, saved["original"], transforms, item, True, args)
    expected = {
        "copy": np.array([6], np.float16),
        "half": np.array([3], np.float32),
        "sum": np.array([12], np.float64),
        "f": np.array([6], np.int32),
    }
    assert_same(found, expected)
    assert restored(orbax, saved["original"], transforms, item, True, args)["f"].dtype == np.float16


def test_failing_function_is_named_with_its_leaf(saved: dict[str, Path]) -> None:
    def fail(_: object) -> object:
        raise KeyError("gone")

    with pytest.raises(TransformError, match=r"x: value_fn of int64\[2\] failed: KeyError"):
        restored(
            ocp,
            saved["original"],
            lambda m: {"x": m.Transform(original_key="a", value_fn=fail)},
            {"x": Z},
        )


def test_empty_container_is_no_leaf(saved: dict[str, Path]) -> None:
    """In Orbax the result has an object of its metadata."""
    found = restored(ocp, saved["nested"], lambda _: {}, {"none": Z, "opt": [Z, Z]})
    assert_same(found, {"none": Z, "opt": [Z, Z]})
    with pytest.raises(TransformError, match='key "opt/1" not found in origin tree'):
        restored(ocp, saved["nested"], lambda m: {"x": m.Transform(original_key="opt/1")}, {"x": Z})


# Arguments


@pytest.mark.parametrize(
    ("fields", "clash"),
    [
        ({"original_key": "a", "use_fallback": True}, "original_key and use_fallback"),
        ({"original_key": "a", "multi_value_fn": print}, "original_key and multi_value_fn"),
        ({"use_fallback": True, "value_fn": print}, "use_fallback and value_fn"),
        ({"use_fallback": True, "multi_value_fn": print}, "use_fallback and multi_value_fn"),
        ({"value_fn": print, "multi_value_fn": print}, "value_fn and multi_value_fn"),
        ({"value_fn": print, "multi_value_fn_input_args": {}}, "value_fn and multi_value_fn_input"),
        ({"original_key": "", "multi_value_fn_input_args": {}}, "original_key and multi_value_fn"),
        ({"multi_value_fn_input_args": {}}, "are the inputs of multi_value_fn"),
    ],
)
def test_fields_that_exclude_each_other(fields: dict[str, Any], clash: str) -> None:
    kinds: list[type[ocp.Transform]] = [ocp.RestoreTransform]
    if "multi_value_fn_input_args" not in fields:
        kinds.append(ocp.Transform)
    for kind in kinds:
        with pytest.raises(ValueError, match=clash):
            kind(**fields)
        with pytest.raises(AssertionError):
            getattr(orbax, kind.__name__)(**fields)


def test_something_else_than_a_transform_is_refused(saved: dict[str, Path]) -> None:
    with pytest.raises(TypeError, match="'x/y' is 5, expected a Transform"):
        restored(ocp, saved["original"], lambda _: {"x": {"y": 5}}, {"a": Z})


def test_no_transforms_is_not_the_same_as_an_empty_tree(saved: dict[str, Path]) -> None:
    args = ocp.args.PyTreeRestore({"a": Z, "g": Z})
    with pytest.raises(TreeMismatchError, match="tree structures do not match"):
        checkpointer().restore(saved["original"], args=args)
    args.transforms = {}
    assert_same(checkpointer().restore(saved["original"], args=args), {"a": ints(1, 2), "g": Z})


def test_transforms_and_a_function_exclude_each_other(saved: dict[str, Path]) -> None:
    both = "Cannot provide both `transforms` and `legacy_transform_fn`."
    for library in (ocp, orbax):
        args = library.args.PyTreeRestore(
            ORIGINAL, transforms={}, legacy_transform_fn=lambda *_: (0, 0)
        )
        with pytest.raises(ValueError, match=re.escape(both)):
            library.PyTreeCheckpointer().restore(saved["original"], args=args)


def with_function(
    library: Library, path: Path, fn: Any, item: Any, restore_args: Any = None
) -> Any:
    args = library.args.PyTreeRestore(item, restore_args=restore_args, legacy_transform_fn=fn)
    return library.PyTreeCheckpointer().restore(path, args=args)


@pytest.mark.interop
def test_function_of_the_stored_tree_gives_what_orbax_gives(saved: dict[str, Path]) -> None:
    seen: list[object] = []

    def fn(item: Any, structure: Any, infos: Any) -> Any:
        seen.append((item, structure["b"]["d"].value_type, infos["b"]["d"].name))
        return [
            {"x": tree["f"], "t": (tree["b"]["c"], tree["b"]["c"])} for tree in (structure, infos)
        ]

    item = {"x": 0, "t": (0, 0)}
    for library in (ocp, orbax):
        args = jax.tree.map(lambda _, m=library: m.RestoreArgs(dtype=np.int8), item)
        found = with_function(library, saved["original"], fn, item, args)
        expected = {
            "x": np.array([6], np.int8),
            "t": (np.array([3], np.int8), np.array([3], np.int8)),
        }
        assert_same(found, expected)
    assert seen == [(item, "np.ndarray", "b.d")] * 2


def test_function_of_the_stored_tree_may_keep_empty_containers(saved: dict[str, Path]) -> None:
    """Orbax returns objects of its metadata in their place."""
    found = with_function(ocp, saved["nested"], lambda _i, structure, infos: (structure, infos), 0)
    expected = {"opt": [{"m": ints(1)}, {}, [ints(2), ints(3)]], "none": None}
    assert_same(found, expected)


def test_function_that_returns_something_else_is_an_error(saved: dict[str, Path]) -> None:
    with pytest.raises(TransformError, match="two trees of different structure: x; and y"):
        with_function(ocp, saved["original"], lambda _i, s, i: ({"x": s["a"]}, {"y": i["a"]}), 0)
    with pytest.raises(TransformError, match="x: legacy_transform_fn returned 5, expected the"):
        with_function(ocp, saved["original"], lambda _i, s, _: ({"x": s["a"]}, {"x": 5}), 0)
    with pytest.raises(ValueError, match="must provide `item`"):
        with_function(ocp, saved["original"], lambda _i, s, i: (s, i), None)


def test_transforms_as_keyword_arguments_of_restore(saved: dict[str, Path]) -> None:
    found = ocp.PyTreeCheckpointer().restore(
        saved["original"], item={"x": Z}, transforms={"x": ocp.Transform(original_key="a")}
    )
    assert_same(found, {"x": ints(1, 2)})


# What is read, and how


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A checkpoint with arrays in files of which only `a` and `b/d` have their data."""
    checkpointer(use_ocdbt=False).save(tmp_path / "x", ORIGINAL)
    for name in ("b.c", "f"):
        chunks = [p for p in (tmp_path / "x" / name).rglob("*") if p.is_file()]
        removed = [p for p in chunks if p.name not in (".zarray", "zarr.json")]
        assert removed
        for path in removed:
            path.unlink()
    return tmp_path / "x"


@pytest.mark.parametrize("default", [True, False])
def test_only_leaves_that_are_needed_are_read(damaged: Path, default: bool) -> None:
    found = restored(
        ocp,
        damaged,
        lambda m: {
            "f": m.Transform(original_key="a"),
            "s": many(lambda _k, t, _: t["b"]["d"], "b/d")(m),
            **({"b/c": m.Transform(use_fallback=True)} if default else {}),
        },
        {"f": Z, "s": Z, "b": {"c": Z}},
        default,
    )
    assert_same(found, {"f": ints(1, 2), "s": ints(4, 5), "b": {"c": Z}})


def test_missing_data_is_an_error_with_transforms_too(damaged: Path) -> None:
    """ORB-41; Orbax returns zeros."""
    for transforms in ({}, {"f": ocp.Transform()}, {"f": ocp.Transform(value_fn=times(2))}):
        with pytest.raises(CorruptionError, match="f"):
            restored(ocp, damaged, lambda _, t=transforms: t, {"f": Z})


def test_dtype_and_sharding_of_a_leaf_follow_a_rename(tmp_path: Path) -> None:
    value = jnp.arange(16.0).reshape(8, 2)
    checkpointer().save(tmp_path / "x", {"old": value, "other": value})
    sharded = put(value, "x", None, x=8).sharding
    on_one = SingleDeviceSharding(jax.devices()[3])
    found = restored(
        ocp,
        tmp_path / "x",
        lambda m: {
            "new": m.Transform(original_key="old"),
            "twice": m.Transform(original_key="other", value_fn=times(2)),
        },
        {"new": Z, "twice": Z},
        True,
        lambda m: {
            "new": m.ArrayRestoreArgs(sharding=sharded, dtype=jnp.bfloat16),
            "twice": m.ArrayRestoreArgs(sharding=on_one, global_shape=(8, 2)),
        },
    )
    assert found["new"].sharding == sharded
    assert found["new"].dtype == jnp.bfloat16
    assert found["twice"].sharding == on_one
    np.testing.assert_array_equal(found["new"], value)
    np.testing.assert_array_equal(found["twice"], value * 2)


@pytest.mark.interop
def test_checkpoint_written_by_orbax(tmp_path: Path) -> None:
    orbax.PyTreeCheckpointer().save(tmp_path / "x", NESTED)

    def rules(m: Library) -> Any:
        return {r"m/(\d)": m.Transform(original_key=r"opt/2/\1")}

    item = {"m": [Z, Z], "opt": ({"m": Z}, {}, Z)}
    ours = restored(ocp, tmp_path / "x", rules, item)
    assert_same(ours, {"m": [ints(2), ints(3)], "opt": ({"m": ints(1)}, {}, Z)})
    assert_same(ours, restored(orbax, tmp_path / "x", rules, item))


# Properties

KEYS = st.sampled_from(["a", "b", "c", "x1"])
LEAVES = st.integers(0, 99).map(ints)
TREES = st.recursive(
    st.dictionaries(KEYS, LEAVES, min_size=1, max_size=3),
    lambda trees: (
        st.dictionaries(KEYS, LEAVES | trees, min_size=1, max_size=3)
        | st.lists(LEAVES | trees, min_size=1, max_size=2).map(lambda values: {"l": values})
    ),
    max_leaves=6,
)
PATTERNS = st.sampled_from(
    [
        *(
            "a",
            "b",
            "x1",
            "a/b",
            ".*",
            "(.*)",
            "(.)",
            "(.*)/(.*)",
            r"(\w)1",
            "a/(.*)",
            "l/(.)",
            "[ab]",
        )
    ]
)
ORIGINAL_KEYS = st.sampled_from([None, "a", "b", "a/b", r"\1", r"\1/a", r"b/\1", "l/0", "nope"])
FIELDS = st.one_of(
    st.just({"use_fallback": True}),
    st.fixed_dictionaries({"original_key": ORIGINAL_KEYS}),
    st.fixed_dictionaries({"original_key": ORIGINAL_KEYS, "value_fn": st.just(times(100))}),
)
TRANSFORMS = st.dictionaries(PATTERNS, FIELDS, max_size=3)


def outcome(run: Callable[[], Any]) -> Any:
    """Return a result, or the beginning of an error's message."""
    try:
        return run()
    except (ValueError, re.error) as error:
        if "invalid group reference" in str(error):
            return "invalid group reference"
        return str(error)[: str(error).find("tree") + 4]


def assert_same_outcome(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, str) or isinstance(ours, str):
        assert ours == theirs
    else:
        assert_same(ours, theirs)


@given(TREES, TREES, TRANSFORMS, st.booleans())
@settings(max_examples=rounds(100, 2000))
def test_values_are_transformed_as_by_orbax(
    original: Any, new: Any, fields: dict[str, Any], default: bool
) -> None:
    ours, theirs = (
        outcome(
            lambda m=m: m.apply_transformations(
                original, {key: m.Transform(**f) for key, f in fields.items()}, new, default
            )
        )
        for m in (ocp, orbax)
    )
    assert_same_outcome(ours, theirs)


@pytest.mark.slow
@pytest.mark.interop
@given(TREES, TREES, TRANSFORMS, st.booleans())
def test_checkpoints_are_transformed_as_by_orbax(
    original: Any, new: Any, fields: dict[str, Any], default: bool
) -> None:
    with scratch() as path:
        checkpointer(use_ocdbt=False).save(path, original)
        ours, theirs = (
            outcome(
                lambda m=m: restored(
                    m,
                    path,
                    lambda m: {key: m.Transform(**f) for key, f in fields.items()},
                    new,
                    default,
                )
            )
            for m in (ocp, orbax)
        )
        shutil.rmtree(path)
    assert_same_outcome(ours, theirs)


def test_values_are_transformed_by_functions_of_the_tree() -> None:
    for m in (ocp, orbax):
        transforms = {r"s\d": m.Transform(multi_value_fn=lambda key, tree: (key, tree["a"]))}
        found = m.apply_transformations({"a": 1, "b": 2}, transforms, {"s1": 0, "b": 0, "e": {}})
        assert found == {"s1": ("s1", 1), "b": 2, "e": {}}
        assert m.apply_transformations({"a": 1}, {}, ()) == {}
        assert m.apply_transformations({"a": 1}, {}, 0) == 0


@given(st.lists(TREES, min_size=1, max_size=3), st.booleans())
def test_trees_are_merged_and_intersected_as_by_orbax(trees: list[Any], to_target: bool) -> None:
    target = trees[0] if to_target else None
    for name in ("merge_trees", "intersect_trees"):
        theirs: Any = None
        try:
            theirs = getattr(orbax.transform_utils, name)(*trees, target=target)
        except (AssertionError, IndexError, KeyError, TypeError):  # as it happens
            with pytest.raises(TreeMismatchError):
                getattr(ocp.transform_utils, name)(*trees, target=target)
            continue
        assert_same(getattr(ocp.transform_utils, name)(*trees, target=target), theirs)


def test_merge_and_intersection_of_odd_trees() -> None:
    utils = ocp.transform_utils
    assert utils.merge_trees() == {}
    assert utils.merge_trees({"a": {}, "b": None}, {"c": (1, 2)}) == {"c": {"0": 1, "1": 2}}
    assert utils.merge_trees({"c": (1, 2)}, {"c": [3]}, target={"c": (0, 0)}) == {"c": (3, 2)}
    assert utils.merge_trees(5) == 5
    with pytest.raises(ValueError, match="no trees"):
        utils.intersect_trees()
    with pytest.raises(TreeMismatchError, match=r"lack: b/c"):
        utils.merge_trees({"a": 1}, target={"b": {"c": 0}})
