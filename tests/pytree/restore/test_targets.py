"""What a caller asks for: targets, restore arguments, save arguments."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as orbax
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import orbit_ckpt as ocp
from orbit_ckpt._src.metadata.values import ArrayMetadata
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt.checkpoint_utils import construct_restore_args
from orbit_ckpt.errors import TreeMismatchError, UnsupportedLeafError
from tests.support import LAYOUTS, assert_same_leaf, assert_same_tree, make_mesh, put

Shape = tuple[int, ...]

GRID = np.arange(64, dtype=np.float32).reshape(8, 8)
MESH = make_mesh(x=4, y=2)
SHARDED = NamedSharding(MESH, P("y", "x"))
OTHER_DEVICE = SingleDeviceSharding(jax.devices()[3])
TREE = {
    "dense": {"kernel": jnp.asarray(GRID), "bias": np.zeros(8, np.float32)},
    "step": 7,
    "rate": 0.5,
    "name": "adam",
    "raw": b"abc",
    "key": jax.random.key(0),
    "keys": jax.random.wrap_key_data(jnp.arange(6, dtype=np.uint32).reshape(3, 2)),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of `TREE`."""
    ocp.save(tmp_path / "saved", TREE)
    return tmp_path / "saved"


def with_leaves(**leaves: object) -> Any:
    """Return a target that asks for some leaves only."""
    skip_all = dict.fromkeys(TREE, ocp.PLACEHOLDER)
    return skip_all | leaves


def restored(path: Path, **leaves: object) -> Any:
    """Return the one leaf of `TREE` that is asked for by a target."""
    (name,) = leaves
    return ocp.load(path, like=with_leaves(**leaves))[name]


def pytree_restore(path: Path, item: object = None, **args: Any) -> Any:
    return ocp.PyTreeCheckpointer().restore(path, args=ocp.args.PyTreeRestore(item, **args))


def standard_restore(path: Path, item: object = None, **args: Any) -> Any:
    trees = ocp.Checkpointer(ocp.StandardHandler())
    return trees.restore(path, args=ocp.args.StandardRestore(item, **args))


# Structure


def test_one_error_lists_every_difference_with_the_nearest_names(saved: Path) -> None:
    target = {
        "dense": {"kernels": jnp.asarray(GRID), "bias": np.zeros(8, np.float32)},
        "step": {"count": 7},
        **{name: TREE[name] for name in ("rate", "name", "raw", "key", "keys")},
    }
    with pytest.raises(TreeMismatchError, match="tree structures do not match") as caught:
        ocp.load(saved, like=target)
    message = str(caught.value)
    assert "dense/kernels (nearest: dense/kernel)" in message
    assert caught.value.paths == ("dense/kernels", "step/count", "dense/kernel", "step")
    assert "partial_restore" in message


def test_one_error_lists_what_is_missing_unexpected_and_different(saved: Path) -> None:
    target = TREE | {
        "dense": {"kernels": jnp.asarray(GRID), "bias": np.zeros(9, np.float32)},
        "name": 3,
    }
    with pytest.raises(TreeMismatchError) as caught:
        ocp.load(saved, like=target)
    assert caught.value.paths == ("dense/kernels", "dense/kernel", "dense/bias", "name")
    message = str(caught.value)
    assert "dense/kernels (nearest: dense/kernel)" in message
    assert "dense/bias: shape (9,) wanted, (8,) stored" in message
    assert "name: the target has a int, a string is stored" in message


def test_one_error_lists_every_leaf_of_another_shape_or_kind(saved: Path) -> None:
    target = TREE | {
        "dense": {"kernel": jnp.zeros((8, 4)), "bias": np.zeros(8, np.int32)},
        "rate": 1,
        "name": 3,
        "raw": "abc",
    }
    with pytest.raises(TreeMismatchError, match="different:") as caught:
        ocp.load(saved, like=target)
    message = str(caught.value)
    assert "dense/kernel: shape (8, 4) wanted, (8, 8) stored" in message
    assert "dense/bias: dtype int32 wanted, float32 stored" in message
    assert "rate: dtype int64 wanted, float64 stored" in message
    assert "name: the target has a int, a string is stored" in message
    assert "raw: the target has a string, an array of shape (3,)" in message
    assert len(caught.value.paths) == 5


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("keys", TREE["keys"][:2]),
        ("keys", jax.random.wrap_key_data(jnp.zeros((3, 4), np.uint32), impl="rbg")),
        ("keys", jnp.zeros((3, 2), jnp.uint32)),
        ("dense", {"kernel": TREE["keys"], "bias": ocp.PLACEHOLDER}),
        ("step", TREE["key"]),
        ("step", b""),
        ("dense", {"kernel": ocp.PLACEHOLDER, "bias": b""}),
        ("raw", 3),
        ("name", b""),
    ],
    ids=[
        "other number of keys",
        "keys of another implementation",
        "data for keys",
        "keys for data",
        "key for a number",
        "bytes for a number",
        "bytes for an array",
        "number for bytes",
        "bytes for a string",
    ],
)
def test_leaf_of_another_kind_is_refused(name: str, wanted: object, saved: Path) -> None:
    with pytest.raises(TreeMismatchError, match=rf"different:\n +{name}"):
        restored(saved, **{name: wanted})


@pytest.mark.parametrize("wanted", [None, {}])
def test_empty_container_for_a_leaf_is_refused(wanted: object, saved: Path) -> None:
    with pytest.raises(TreeMismatchError, match=r"in the checkpoint only:\n +step"):
        restored(saved, step=wanted)


def test_leaf_for_an_empty_container_is_refused(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {"a": None, "b": 1})
    with pytest.raises(TreeMismatchError, match="a: the target has a leaf, an empty container"):
        ocp.load(tmp_path / "c", like={"a": 1, "b": 1})


def test_empty_containers_of_target_and_checkpoint_need_not_agree(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {"a": None, "b": 1, "c": {}})
    assert ocp.load(tmp_path / "c", like={"b": 0, "c": [], "d": ()}) == {"b": 1, "c": [], "d": ()}


def test_partial_restore_reads_only_what_the_target_has(saved: Path) -> None:
    target = {"dense": {"bias": 0}, "step": 0}
    assert_same_tree(
        pytree_restore(saved, target, partial_restore=True),
        {"dense": {"bias": TREE["dense"]["bias"]}, "step": 7},
    )
    with pytest.raises(TreeMismatchError, match="in the checkpoint only"):
        pytree_restore(saved, target)


def test_partial_restore_does_not_excuse_missing_leaves_without_a_value(saved: Path) -> None:
    with pytest.raises(
        TreeMismatchError, match=r"missing in the checkpoint:\n +stop \(nearest: step"
    ):
        pytree_restore(saved, {"stop": jax.ShapeDtypeStruct((), np.int32)}, partial_restore=True)


def test_placeholders_are_not_read_and_stay(saved: Path) -> None:
    target = with_leaves(step=0)
    assert ocp.load(saved, like=target) == target | {"step": 7}
    assert pytree_restore(saved, target) == target | {"step": 7}
    assert standard_restore(saved, target) == target | {"step": 7}


def test_placeholder_stands_for_a_whole_subtree(saved: Path) -> None:
    assert ocp.load(saved, like=ocp.PLACEHOLDER) is ocp.PLACEHOLDER


def test_leaves_of_an_item_give_its_structure_only(saved: Path) -> None:
    loaded = pytree_restore(saved, jax.tree.map(lambda _: "anything", TREE))
    assert_same_tree(loaded, TREE)


# Types, dtypes and shardings of a target


@pytest.mark.parametrize(
    ("name", "wanted", "expected"),
    [
        ("step", 0.0, 7.0),
        ("step", np.int8(0), np.int8(7)),
        ("step", np.zeros((), np.int16), np.array(7, np.int16)),
        ("step", jnp.int32(0), jnp.int32(7)),
        ("step", 1j, 7 + 0j),
        ("rate", np.float32(0), np.float32(0.5)),
        ("rate", ml_dtypes.bfloat16(0), ml_dtypes.bfloat16(0.5)),
        ("raw", np.zeros(3, np.uint8), np.frombuffer(b"abc", np.uint8)),
        ("raw", b"", b"abc"),
        ("name", "", "adam"),
        ("step", float, 7.0),
        ("rate", int, 0),
        ("keys", jax.ShapeDtypeStruct((3,), TREE["key"].dtype), TREE["keys"]),
    ],
)
def test_leaf_of_a_target_gives_the_type(
    name: str, wanted: object, expected: object, saved: Path
) -> None:
    assert_same_leaf(restored(saved, **{name: wanted}), expected)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (np.zeros((8, 8), ml_dtypes.bfloat16), GRID.astype(ml_dtypes.bfloat16)),
        (jax.ShapeDtypeStruct((8, 8), jnp.bfloat16), jnp.asarray(GRID, jnp.bfloat16)),
        (
            jax.ShapeDtypeStruct((8, 8), np.float32, sharding=SHARDED),
            jax.device_put(GRID, SHARDED),
        ),
        (jax.device_put(GRID, OTHER_DEVICE), jax.device_put(GRID, OTHER_DEVICE)),
        (np.ndarray, GRID),
        (jax.Array, jnp.asarray(GRID)),
        (ocp.RestoreArgs(dtype=np.float16), jnp.asarray(GRID, np.float16)),
        (ocp.ArrayRestoreArgs(sharding=SHARDED), jax.device_put(GRID, SHARDED)),
    ],
    ids=["numpy", "abstract", "sharding", "array", "np.ndarray", "jax.Array", "dtype", "args"],
)
def test_array_of_a_target_gives_type_dtype_and_sharding(
    wanted: object, expected: object, saved: Path
) -> None:
    target = {"kernel": wanted, "bias": ocp.PLACEHOLDER}
    assert_same_leaf(restored(saved, dense=target)["kernel"], expected)


@pytest.mark.parametrize("base", [int, float, complex, str])
def test_scalar_of_a_derived_class_loads_into_its_own_tree(base: type, tmp_path: Path) -> None:
    value = type("Derived", (base,), {})(3)
    ocp.save(tmp_path / "c", {"a": value})
    assert ocp.load(tmp_path / "c", like={"a": value}) == {"a": base(3)}
    found = ocp.load(tmp_path / "c", like={"a": value, "b": value}, fallback={"b": value})
    assert found["b"] == value


def test_array_without_any_sharding_goes_to_the_one_given_to_load(saved: Path) -> None:
    target = with_leaves(
        dense={"kernel": ocp.PLACEHOLDER, "bias": jax.ShapeDtypeStruct((8,), np.float32)}
    )
    replicated = NamedSharding(make_mesh(x=8), P())
    loaded = ocp.load(saved, like=target, sharding=replicated)
    assert loaded["dense"]["bias"].sharding == replicated


def test_sharding_that_does_not_divide_a_shape_is_an_error_that_names_the_leaf(
    tmp_path: Path,
) -> None:
    ocp.save(tmp_path / "c", {"a": jnp.zeros(9)})
    target = {"a": jax.ShapeDtypeStruct((9,), np.float32, sharding=put(GRID, "x", x=8).sharding)}
    with pytest.raises(ValueError, match=r"^a: .*evenly divide"):
        ocp.load(tmp_path / "c", like=target)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 8), GRID),
        ((10, 8), np.pad(GRID, [(0, 2), (0, 0)])),
        ((4, 6), GRID[:4, :6]),
        ((16, 2), np.pad(GRID[:, :2], [(0, 8), (0, 0)])),
        ((0, 8), GRID[:0]),
    ],
)
@pytest.mark.parametrize("sharding", [SHARDED, OTHER_DEVICE], ids=["sharded", "single device"])
def test_not_strict_arguments_pad_with_zeros_or_cut(
    shape: Shape, expected: np.ndarray, sharding: jax.sharding.Sharding, saved: Path
) -> None:
    if sharding is SHARDED and (shape[0] % 2 or shape[1] % 4):
        sharding = NamedSharding(make_mesh(x=2), P("x"))
    args = ocp.ArrayRestoreArgs(sharding=sharding, global_shape=shape, strict=False)
    item = with_leaves(dense={"kernel": 0, "bias": ocp.PLACEHOLDER})
    loaded = pytree_restore(saved, item, restore_args={"dense": {"kernel": args}})
    assert_same_leaf(loaded["dense"]["kernel"], jax.device_put(expected, sharding))


@pytest.mark.parametrize("shape", [(10, 8), (4, 8)])
def test_not_strict_target_pads_or_cuts(shape: Shape, saved: Path) -> None:
    expected = jnp.asarray(np.pad(GRID, [(0, 8), (0, 0)])[: shape[0]])
    target = with_leaves(dense={"kernel": jnp.zeros(shape), "bias": ocp.PLACEHOLDER})
    for loaded in (
        ocp.load(saved, like=target, strict=False),
        standard_restore(saved, target, strict=False),
    ):
        assert_same_leaf(loaded["dense"]["kernel"], expected)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("shape", [(4,), (8, 8, 1)])
def test_shape_of_another_rank_is_never_accepted(shape: Shape, strict: bool, saved: Path) -> None:
    args = ocp.ArrayRestoreArgs(global_shape=shape, strict=strict)
    with pytest.raises(ValueError, match=r"dense/kernel: Requested shape: .* is not compatible"):
        pytree_restore(saved, restore_args={"dense": {"kernel": args}})


def test_strict_arguments_refuse_another_shape(saved: Path) -> None:
    args = ocp.ArrayRestoreArgs(global_shape=(4, 8))
    with pytest.raises(TreeMismatchError, match=r"Truncating/padding is disabled.*strict=False"):
        pytree_restore(saved, restore_args={"dense": {"kernel": args}})


def test_shapes_that_contradict_each_other_are_refused() -> None:
    assert ocp.ArrayRestoreArgs(shape=(2,)).global_shape == (2,)
    with pytest.raises(ValueError, match=r"shape=\(2,\) and global_shape=\(3,\)"):
        ocp.ArrayRestoreArgs(shape=(2,), global_shape=(3,))


# Restore arguments


def test_restore_args_give_type_and_dtype(saved: Path) -> None:
    args = {
        "dense": {
            "kernel": ocp.RestoreArgs(restore_type=np.ndarray, dtype="bfloat16"),
            "bias": ocp.ArrayRestoreArgs(dtype=jnp.float16, sharding=OTHER_DEVICE),
        },
        "step": ocp.RestoreArgs(restore_type=float),
        "rate": ocp.RestoreArgs(restore_type=np.ndarray, dtype=np.int32),
    }
    expected = TREE | {
        "dense": {
            "kernel": GRID.astype(ml_dtypes.bfloat16),
            "bias": jax.device_put(np.zeros(8, np.float16), OTHER_DEVICE),
        },
        "step": 7.0,
        "rate": np.array(0, np.int32),
    }
    assert_same_tree(pytree_restore(saved, restore_args=args), expected)
    assert_same_tree(pytree_restore(saved, TREE, restore_args=args), expected)


def test_mesh_and_axes_give_the_sharding(saved: Path) -> None:
    args = ocp.ArrayRestoreArgs(mesh=MESH, mesh_axes=SHARDED.spec, sharding=OTHER_DEVICE)
    loaded = pytree_restore(saved, restore_args={"dense": {"kernel": args}})
    assert_same_leaf(loaded["dense"]["kernel"], jax.device_put(GRID, SHARDED))


def test_sharding_may_be_given_as_recorded(saved: Path, tmp_path: Path) -> None:
    ocp.save(tmp_path / "other", {"w": jax.device_put(GRID, SHARDED)})
    recorded: Any = ocp.metadata(tmp_path / "other").tree
    args = ocp.ArrayRestoreArgs(sharding=recorded["w"].sharding)
    loaded = pytree_restore(saved, restore_args={"dense": {"kernel": args}})
    assert loaded["dense"]["kernel"].sharding == SHARDED


@pytest.mark.parametrize(
    ("name", "kind"), [("name", np.ndarray), ("name", int), ("name", jax.Array), ("step", str)]
)
def test_type_that_a_leaf_cannot_have_is_refused(name: str, kind: type, saved: Path) -> None:
    with pytest.raises(TreeMismatchError, match=f"{name}: "):
        pytree_restore(saved, restore_args={name: ocp.RestoreArgs(restore_type=kind)})


def test_array_is_not_restored_as_a_scalar(saved: Path) -> None:
    args = {"dense": {"bias": ocp.RestoreArgs(restore_type=int)}}
    with pytest.raises(TreeMismatchError, match=r"dense/bias: a scalar was asked for"):
        pytree_restore(saved, restore_args=args)


def test_restore_args_of_a_leaf_that_is_not_there_are_refused(saved: Path) -> None:
    with pytest.raises(ValueError, match="steps"):
        pytree_restore(saved, restore_args={"steps": ocp.RestoreArgs(dtype=np.int32)})


def test_64_bit_dtype_is_refused_in_32_bit_mode(saved: Path) -> None:
    args = {"dense": {"kernel": ocp.ArrayRestoreArgs(dtype=np.float64)}}
    with pytest.raises(UnsupportedLeafError, match=r"dense/kernel: .*float64 need 64-bit mode"):
        pytree_restore(saved, restore_args=args)


def test_standard_restore_uses_the_fallback_sharding_where_none_is_recorded(saved: Path) -> None:
    target = with_leaves(
        dense={
            "kernel": jax.ShapeDtypeStruct((8, 8), np.float32),
            "bias": jax.ShapeDtypeStruct((8,), np.float32),
        }
    )
    loaded = standard_restore(saved, target, fallback_sharding=OTHER_DEVICE)["dense"]
    assert loaded["bias"].sharding == OTHER_DEVICE
    assert loaded["kernel"].sharding == TREE["dense"]["kernel"].sharding


def test_standard_restore_is_strict(saved: Path) -> None:
    target = with_leaves(dense={"kernel": jnp.zeros((4, 8)), "bias": ocp.PLACEHOLDER})
    with pytest.raises(TreeMismatchError, match=r"dense/kernel: shape \(4, 8\) wanted"):
        standard_restore(saved, target)


def test_standard_restore_without_a_target_restores_what_was_saved(saved: Path) -> None:
    assert_same_tree(standard_restore(saved), TREE)


# construct_restore_args


def test_restore_args_are_made_of_a_target(saved: Path) -> None:
    target = {
        "w": jax.device_put(GRID, SHARDED),
        "a": GRID,
        "i": 1,
        "s": "x",
        "n": None,
        "skip": ...,
    }
    args: Any = construct_restore_args(target)
    assert args["w"] == ocp.ArrayRestoreArgs(
        dtype=np.dtype(np.float32), sharding=SHARDED, global_shape=(8, 8)
    )
    assert args["a"] == ocp.RestoreArgs(restore_type=np.ndarray, dtype=np.dtype(np.float32))
    assert args["i"] == ocp.RestoreArgs(restore_type=int)
    assert args["s"] == ocp.RestoreArgs(restore_type=str)
    assert args["n"] is None
    assert args["skip"] is ocp.PLACEHOLDER
    restore_args = construct_restore_args(TREE)
    assert_same_tree(pytree_restore(saved, TREE, restore_args=restore_args), TREE)


def test_given_shardings_replace_those_of_the_target() -> None:
    target = {"a": jnp.zeros(8), "b": 1, "c": jnp.zeros((8, 8))}
    args: Any = construct_restore_args(target, {"a": OTHER_DEVICE, "b": None, "c": SHARDED})
    assert args["a"].sharding == OTHER_DEVICE
    assert args["c"].sharding == SHARDED


def test_shardings_must_have_the_structure_of_the_target() -> None:
    with pytest.raises(ValueError, match="sharding_tree has 1 leaves, the target 2"):
        construct_restore_args({"a": 1, "b": 2}, {"a": None})


def test_shape_of_the_target_may_be_left_open(saved: Path) -> None:
    target = with_leaves(dense={"kernel": jnp.zeros((1, 2)), "bias": ocp.PLACEHOLDER})
    args = construct_restore_args(target, set_global_shape=False)
    loaded = pytree_restore(saved, restore_args=args)
    assert_same_leaf(loaded["dense"]["kernel"], TREE["dense"]["kernel"])


def test_restore_args_may_allow_another_shape(saved: Path) -> None:
    target = with_leaves(dense={"kernel": jnp.zeros((2, 8)), "bias": ocp.PLACEHOLDER})
    args = construct_restore_args(target, strict=False)
    loaded = pytree_restore(saved, target, restore_args=args)
    assert_same_leaf(loaded["dense"]["kernel"], jnp.asarray(GRID[:2]))


def test_restore_args_are_made_of_metadata(saved: Path) -> None:
    args = construct_restore_args(ocp.metadata(saved))
    loaded = pytree_restore(saved, restore_args=args)
    assert_same_leaf(loaded["dense"]["kernel"], TREE["dense"]["kernel"])
    assert (loaded["step"], loaded["name"]) == (7, "adam")


@pytest.mark.parametrize(
    ("args", "leaf"),
    [
        (ocp.ArrayRestoreArgs(sharding=SHARDED), jnp.zeros((4, 4))),
        (ocp.ArrayRestoreArgs(mesh=MESH, mesh_axes=P("y", "x")), jnp.zeros((4, 4))),
        (ocp.ArrayRestoreArgs(), np.zeros((4, 4), np.float32)),
        (ocp.ArrayRestoreArgs(), jax.ShapeDtypeStruct((4, 4), np.float32)),
        (ocp.ArrayRestoreArgs(), ArrayMetadata("w", None, (4, 4), None, np.dtype(np.float32))),
    ],
)
def test_array_arguments_without_a_shape_ask_for_that_of_the_target(
    tmp_path: Path, args: ocp.ArrayRestoreArgs, leaf: object
) -> None:
    ocp.save(tmp_path / "c", {"w": jnp.asarray(GRID)})
    message = r"Requested shape: \(4, 4\) is not compatible with the stored shape: \(8, 8\)"
    with pytest.raises(TreeMismatchError, match=message):
        pytree_restore(tmp_path / "c", {"w": leaf}, restore_args={"w": args})


def test_array_arguments_without_a_dtype_ask_for_that_of_the_target(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {"w": jnp.asarray(GRID), "x": jnp.asarray(GRID)})
    item = {"w": jnp.zeros((8, 8), jnp.bfloat16), "x": np.zeros((8, 8), np.float64)}
    args = dict.fromkeys(item, ocp.ArrayRestoreArgs(sharding=SHARDED))
    loaded = pytree_restore(tmp_path / "c", item, restore_args=args)
    assert_same_leaf(loaded["w"], jax.device_put(GRID.astype(jnp.bfloat16), SHARDED))
    assert loaded["x"].dtype == np.float32  # JAX has no float64 here


@pytest.mark.parametrize(
    ("args", "shape"),
    [
        (ocp.ArrayRestoreArgs(strict=False), (8, 8)),
        (ocp.ArrayRestoreArgs(strict=False, global_shape=(4, 9)), (4, 9)),
        (ocp.ArrayRestoreArgs(global_shape=(8, 8)), (8, 8)),
        (ocp.RestoreArgs(restore_type=np.ndarray), (8, 8)),
        (None, (8, 8)),
    ],
)
def test_a_shape_that_is_said_or_left_open_goes_before_the_target(
    tmp_path: Path, args: object, shape: Shape, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Orbax, whose `item` is often a tree of other shapes, made for its structure."""
    ocp.save(tmp_path / "c", {"w": jnp.asarray(GRID)})
    item = {"w": jnp.zeros((4, 4), np.float32)}
    with caplog.at_level("WARNING"):
        loaded = pytree_restore(tmp_path / "c", item, restore_args=args and {"w": args})
    assert loaded["w"].shape == shape
    assert "w: (4, 4), restored" in caplog.text


@pytest.mark.parametrize("leaf", [0, jnp.float32(0), ocp.PLACEHOLDER, jnp.zeros((8, 8))])
def test_targets_that_mark_places_only_are_not_logged(
    tmp_path: Path, leaf: object, caplog: pytest.LogCaptureFixture
) -> None:
    ocp.save(tmp_path / "c", {"w": jnp.asarray(GRID)})
    with caplog.at_level("WARNING"):
        pytree_restore(tmp_path / "c", {"w": leaf}, restore_args={"w": ocp.ArrayRestoreArgs()})
    assert not caplog.text


@pytest.mark.parametrize("library", [ocp, orbax], ids=["own", "orbax"])
def test_restore_args_made_of_metadata_are_those_of_orbax(tmp_path: Path, library: Any) -> None:
    tree = {
        "w": jax.device_put(GRID, SHARDED),
        "half": jnp.zeros(3, jnp.bfloat16),
        "host": np.zeros((2, 3), np.int16),
        "int": 1,
        "float": 0.5,
        "single": np.float32(2),
        "name": "adam",
    }
    orbax.PyTreeCheckpointer().save(tmp_path / "c", tree)
    trees = library.Checkpointer(library.PyTreeCheckpointHandler())
    metadata = trees.metadata(tmp_path / "c").item_metadata.tree
    found = library.checkpoint_utils.construct_restore_args(metadata)
    names = ("restore_type", "dtype", "global_shape", "sharding", "strict")
    said = {
        key: {name: getattr(arg, name) for name in names if hasattr(arg, name)}
        for key, arg in found.items()
    }
    for key, sharding in (("w", tree["w"].sharding), ("half", tree["half"].sharding)):
        shape = tree[key].shape
        own = said[key].pop("sharding")
        assert (own.to_jax_sharding() if hasattr(own, "to_jax_sharding") else own) == sharding
        expected = {"restore_type": jax.Array, "dtype": tree[key].dtype}
        assert said[key] == {**expected, "global_shape": shape, "strict": True}
    assert said["host"] == {"restore_type": np.ndarray, "dtype": np.int16}
    assert {key: said[key]["restore_type"] for key in ("int", "float", "single", "name")} == {
        "int": int,
        "float": float,
        "single": float,
        "name": str,
    }


def test_restore_args_made_of_metadata_restore_every_kind_of_leaf(saved: Path) -> None:
    args = construct_restore_args(ocp.metadata(saved))
    assert_same_tree(pytree_restore(saved, TREE, restore_args=args), TREE)


def test_a_sharding_that_is_given_goes_before_the_type_in_metadata(saved: Path) -> None:
    metadata: Any = ocp.metadata(saved)
    bias = metadata["dense"]["bias"]
    args: Any = construct_restore_args({"bias": bias}, {"bias": OTHER_DEVICE})
    assert args["bias"].sharding == OTHER_DEVICE
    assert args["bias"].global_shape == (8,)


# Save arguments


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (ocp.SaveArgs(), "dtype", np.int16),
        (ocp.RestoreArgs(), "dtype", np.int16),
        (ocp.AsyncOptions(), "timeout_secs", 7),
        (ocp.MultiprocessingOptions(), "primary_host", None),
        (ocp.transform_utils.Transform(), "original_key", "a"),
        (ocp.transform_utils.RestoreTransform(), "original_key", "a"),
    ],
)
def test_options_that_can_be_changed_in_orbax_can_be_changed(
    options: object, field: str, value: object
) -> None:
    setattr(options, field, value)
    assert getattr(options, field) == value


def test_save_arguments_changed_after_a_save_has_begun_do_not_count(tmp_path: Path) -> None:
    args = ocp.SaveArgs()
    tree = {"a": jnp.ones(8), "b": np.ones(8, np.float32)}
    with ocp.AsyncCheckpointer(ocp.PyTreeHandler()) as trees:
        trees.save(tmp_path / "c", tree, dict.fromkeys(tree, args))
        args.dtype = np.int16
    assert_same_tree(ocp.load(tmp_path / "c"), tree)


def save_with(path: Path, tree: object, save_args: object, **options: Any) -> Any:
    """Save a tree and return its metadata."""
    trees = ocp.PyTreeCheckpointer(**options)
    trees.save(path, args=ocp.args.PyTreeSave(tree, save_args))
    return ocp.metadata(path).tree


@pytest.mark.parametrize(
    "dtype", ["bfloat16", jnp.bfloat16, ml_dtypes.bfloat16, np.dtype("bfloat16")], ids=repr
)
def test_dtype_of_save_args_may_be_anything_that_names_one(dtype: object, tmp_path: Path) -> None:
    tree = {"jax": jax.device_put(GRID, SHARDED), "numpy": GRID, "scalar": 1.5, "other": GRID}
    args = ocp.SaveArgs(dtype=dtype)
    save_with(tmp_path / "c", tree, {"jax": args, "numpy": args, "scalar": args})
    expected = {
        "jax": tree["jax"].astype(jnp.bfloat16),
        "numpy": GRID.astype(ml_dtypes.bfloat16),
        "scalar": 1.5,
        "other": GRID,
    }
    assert_same_tree(ocp.load(tmp_path / "c"), expected)


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_numbers_that_do_not_fit_the_dtype_to_save_as_are_an_error(
    make: Any, tmp_path: Path
) -> None:
    fitting, wide = make([127, -128], np.int32), make([127, 300], np.int32)
    ocp.save(tmp_path / "a", {"steps": fitting}, cast={"steps": np.int8})
    assert ocp.load(tmp_path / "a")["steps"].tolist() == [127, -128]
    with pytest.raises(UnsupportedLeafError, match=r"steps: .* int32 do not fit int8"):
        ocp.save(tmp_path / "b", {"steps": wide}, cast={"steps": np.int8})
    assert not (tmp_path / "b").exists()


def test_strings_keys_and_bytes_are_not_cast(tmp_path: Path) -> None:
    tree = {name: TREE[name] for name in ("name", "raw", "keys")}
    save_with(tmp_path / "c", tree, dict.fromkeys(tree, ocp.SaveArgs(dtype=np.float16)))
    assert_same_tree(ocp.load(tmp_path / "c"), tree)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("tree", "args", "chunks"),
    [
        (np.zeros((16, 16), np.float32), {"dtype": "bfloat16", "chunk_byte_size": 128}, (8, 8)),
        (np.zeros((8, 8), np.float32), {"shard_axes": (0,)}, (1, 8)),
        (jax.device_put(GRID, SHARDED), {}, (4, 2)),
        (jax.device_put(GRID, SHARDED), {"chunk_byte_size": 16}, (2, 2)),
        (jax.device_put(GRID, SHARDED), {"shard_axes": (1,)}, (4, 1)),
        (GRID, {}, (8, 8)),
    ],
    ids=["size and dtype", "axes", "shards", "shards and size", "shards and axes", "default"],
)
def test_save_args_give_the_chunks(
    tree: np.ndarray | jax.Array,
    args: dict[str, Any],
    chunks: Shape,
    layout: dict[str, bool],
    tmp_path: Path,
) -> None:
    found = save_with(tmp_path / "c", {"a": tree}, {"a": ocp.SaveArgs(**args)}, **layout)
    assert found["a"].storage.chunk_shape == chunks
    expected = tree.astype(args["dtype"]) if "dtype" in args else tree
    assert_same_tree(ocp.load(tmp_path / "c"), {"a": expected})


def test_save_args_may_lack_leaves_and_be_none(tmp_path: Path) -> None:
    tree = {"a": [GRID, GRID], "b": {"c": 1}, "d": None}
    save_with(tmp_path / "c", tree, {"a": [None, ocp.SaveArgs(dtype=np.float16)], "d": None})
    expected = {"a": [GRID, GRID.astype(np.float16)], "b": {"c": 1}, "d": None}
    assert_same_tree(ocp.load(tmp_path / "c"), {**expected})


@pytest.mark.parametrize(
    ("save_args", "message"),
    [
        ({"b": ocp.SaveArgs()}, "save_args: b: the tree has no such leaf"),
        ({"a": 3}, "save_args: a: expected SaveArgs, found 3"),
        ({"a": ocp.SaveArgs(dtype="O")}, "save_args: a: dtype O cannot be stored"),
        ({"a": ocp.SaveArgs(chunk_byte_size=3)}, "a: chunk_byte_size=3 must be >= 4"),
        ({"a": ocp.SaveArgs(shard_axes=(2,))}, r"a: .*shard_axes=\(2,\) must be"),
    ],
    ids=["unknown leaf", "wrong type", "dtype", "chunk size", "axis"],
)
def test_bad_save_args_are_refused_with_the_leaf_and_nothing_is_written(
    save_args: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        save_with(tmp_path / "c", {"a": GRID}, save_args)
    assert not list(tmp_path.iterdir())


def test_data_files_are_cut_at_the_size_given(tmp_path: Path) -> None:
    def count(name: str, nbytes: int | None) -> int:
        tree = [np.full(1000, i, np.float32) for i in range(20)]
        args = ocp.args.PyTreeSave(tree, ocdbt_target_data_file_size=nbytes)
        ocp.PyTreeCheckpointer().save(tmp_path / name, args=args)
        assert_same_tree(ocp.load(tmp_path / name), tree)
        return len(list((tmp_path / name / "d").iterdir()))

    assert count("small", 16_000) > count("unlimited", 0)
    assert count("unlimited too", 0) == count("default", None)


def test_size_of_data_files_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="ocdbt_target_data_file_size must be at least 0"):
        ocp.args.PyTreeSave({"a": GRID}, ocdbt_target_data_file_size=-1)


# Limits


@pytest.mark.parametrize("handler", [ocp.PyTreeHandler, ocp.StandardHandler])
def test_restore_holds_no_more_than_its_limit_and_reads_an_oversize_array_alone(
    handler: type[ocp.PyTreeHandler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    read = BatchReader.read

    async def spy(self: BatchReader, reads: Sequence[ArrayRead]) -> list[list[np.ndarray]]:
        held.append(sum(r.nbytes for r in reads))
        return await read(self, reads)

    tree = {"a": [np.full(100, i, np.uint8) for i in range(5)], "b": np.zeros(900, np.uint8)}
    ocp.save(tmp_path / "c", tree)
    monkeypatch.setattr(BatchReader, "read", spy)
    limited = ocp.Checkpointer(handler(restore_concurrent_gb=250e-9))
    assert_same_tree(limited.restore(tmp_path / "c"), tree)
    assert sorted(held) == [100, 200, 200, 900]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_save_within_a_limit_below_one_array_writes_everything(
    layout: dict[str, Any], tmp_path: Path
) -> None:
    tree = {"a": np.arange(60_000.0).reshape(300, 200), "b": [GRID] * 9, "c": put(GRID, "x", x=8)}
    save_args = {"a": ocp.SaveArgs(chunk_byte_size=20_000)}
    limited = ocp.Checkpointer(ocp.PyTreeHandler(save_concurrent_gb=1e-6, **layout))
    limited.save(tmp_path / "c", args=ocp.args.PyTreeSave(tree, save_args))
    assert_same_tree(ocp.load(tmp_path / "c"), tree)


@pytest.mark.parametrize(
    "limit",
    [
        {"save_concurrent_gb": 0},
        {"restore_concurrent_gb": -1},
        {"save_device_host_concurrent_gb": 0},
    ],
)
def test_limit_must_be_positive(limit: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(limit))} must be positive"):
        ocp.PyTreeHandler(**limit)


def test_limit_must_be_a_number() -> None:
    with pytest.raises(TypeError, match="save_device_host_concurrent_gb must be a positive number"):
        ocp.PyTreeHandler(save_device_host_concurrent_gb="some")  # pyright: ignore[reportArgumentType] - to be refused


def test_limits_in_bytes_are_checked_and_exclude_those_in_gb() -> None:
    with pytest.raises(ValueError, match="read_concurrent_bytes must be at least 1, found 0"):
        ocp.MemoryOptions(read_concurrent_bytes=0)
    with pytest.raises(ValueError, match="not both"):
        ocp.PyTreeHandler(save_concurrent_gb=1, memory_options=ocp.MemoryOptions())


def peak_of(work: Callable[[], object]) -> int:
    """Return the most bytes that Python, numpy and zstd held at once, beyond those held before."""
    tracemalloc.start()
    try:
        kept = work()
        peak = tracemalloc.get_traced_memory()[1]
        del kept
        return peak
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("use_compression", [True, False])
@pytest.mark.parametrize("use_ocdbt", [True, False])
def test_memory_stays_within_its_budget(
    use_compression: bool, use_ocdbt: bool, tmp_path: Path
) -> None:
    # float16 on disk and float32 here: neither a save nor a load can do without a copy
    rng = np.random.default_rng(0)
    tree = {str(i): rng.normal(size=(1024, 512)).astype(np.float32) for i in range(8)}
    tree["one"] = rng.normal(size=(8, 1024, 512)).astype(np.float32)
    nbytes = sum(value.nbytes for value in tree.values())
    budget = 3 << 20
    limited = ocp.Checkpointer(
        ocp.PyTreeHandler(
            use_compression=use_compression,
            use_ocdbt=use_ocdbt,
            memory_options=ocp.MemoryOptions(budget, budget, budget),
        )
    )
    save_args = {key: ocp.SaveArgs(dtype=np.float16, chunk_byte_size=1 << 20) for key in tree}
    args = ocp.args.PyTreeSave(tree, save_args)
    assert peak_of(lambda: limited.save(tmp_path / "x", args=args)) < 2 * budget
    as_float32 = jax.tree.map(lambda _: ocp.RestoreArgs(dtype=np.float32), tree)
    peak = peak_of(lambda: limited.restore(tmp_path / "x", restore_args=as_float32))
    # the largest array as it is stored does not fit the budget and is read alone
    assert nbytes <= peak < nbytes + tree["one"].nbytes // 2 + (1 << 20)


def test_an_abstract_array_without_a_sharding_leaves_numpy_arrays_numpy(tmp_path: Path) -> None:
    """As `jax.tree.map(ocp.utils.to_shape_dtype_struct, state)` and Orbax make of a state."""
    tree = {"counts": np.arange(3), "w": jnp.ones(3), "raw": b"abc"}
    ocp.save(tmp_path / "c", tree)
    abstract = {
        "counts": jax.ShapeDtypeStruct((3,), np.int64),
        "w": jax.ShapeDtypeStruct((3,), np.float32),
        "raw": jax.ShapeDtypeStruct((3,), np.uint8),
    }
    expected = {**tree, "raw": np.frombuffer(b"abc", np.uint8)}
    assert_same_tree(ocp.load(tmp_path / "c", like=abstract), expected)
    assert_same_tree(standard_restore(tmp_path / "c", abstract), expected)
    args = construct_restore_args(abstract)
    assert_same_tree(pytree_restore(tmp_path / "c", abstract, restore_args=args), expected)
    smaller = {**abstract, "counts": jax.ShapeDtypeStruct((3,), np.int32)}
    assert standard_restore(tmp_path / "c", smaller)["counts"].dtype == np.int32
    replicated = NamedSharding(make_mesh(x=8), P())
    placed = jax.ShapeDtypeStruct((3,), np.int32, sharding=replicated)
    counts = standard_restore(tmp_path / "c", {**abstract, "counts": placed})["counts"]
    assert isinstance(counts, jax.Array)


def test_metadata_are_used_like_the_tree_that_they_describe(saved: Path) -> None:
    found: Any = ocp.Checkpointer(ocp.PyTreeHandler()).metadata(saved).item_metadata
    assert found["dense"]["kernel"].shape == (8, 8)
    assert found.get("dense") is found["dense"]
    assert found.get("nothing", 3) == 3
    assert "dense" in found
    assert set(found) == set(found.keys()) == dict(found.items()).keys() == TREE.keys()
    assert len(found) == len(found.values()) == len(TREE)


@pytest.mark.parametrize(
    "leaf", [np.arange(3), jnp.arange(3), put(GRID, "x", x=8), jax.ShapeDtypeStruct((2,), np.int8)]
)
def test_leaves_are_made_abstract_as_orbax_does(leaf: Any) -> None:
    wanted: Any = orbax.utils.to_shape_dtype_struct(leaf)
    found: Any = ocp.utils.to_shape_dtype_struct(leaf)
    assert (found.shape, found.dtype, found.sharding) == (leaf.shape, leaf.dtype, wanted.sharding)
    cast: Any = ocp.utils.to_shape_dtype_struct(leaf, dtype=np.dtype(np.float16))
    assert cast.dtype == np.float16


def test_what_is_no_array_is_abstract_enough(saved: Path) -> None:
    assert ocp.utils.to_shape_dtype_struct(3) == 3
    assert type(ocp.utils.to_shape_dtype_struct(3, scalar_dtype=float)) is float
    assert ocp.utils.to_shape_dtype_struct("text") == "text"
    metadata: Any = ocp.metadata(saved).tree
    kernel: Any = ocp.utils.to_shape_dtype_struct(metadata["dense"]["kernel"])
    assert kernel.sharding == TREE["dense"]["kernel"].sharding
    keys: Any = ocp.utils.to_shape_dtype_struct(TREE["keys"])
    assert (keys.shape, keys.dtype) == ((3,), TREE["keys"].dtype)
