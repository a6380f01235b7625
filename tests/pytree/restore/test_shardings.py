"""Where loaded arrays are placed, and what is refused as a sharding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import orbit_ckpt as ocp
from orbit_ckpt import transform as tf
from tests.support import make_mesh, put

GRID = np.arange(64, dtype=np.float32).reshape(8, 8)
TREE: dict[str, Any] = {
    "w": put(GRID, "x", x=8),
    "b": jnp.ones(8),
    "host": GRID,
    "step": 3,
    "name": "run",
}
ROWS = NamedSharding(make_mesh(x=4), P("x"))
DEVICE = jax.devices()[3]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shardings") / "saved"
    ocp.save(path, TREE)
    return path


@pytest.fixture(scope="module", params=["safetensors", "flax", "t5x"])
def foreign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    tree: Any = {"target": {"w": GRID, "b": np.ones(8, np.float32)}, "state": {"step": 3}}
    if request.param == "safetensors":
        tree = tree["target"]
    ocp.save(root / "own", tree)
    name = "model.safetensors" if request.param == "safetensors" else "checkpoint_3"
    ocp.convert(root / "own", root / name, to=request.param)
    return root / name


def test_one_sharding_goes_before_the_recorded_ones(saved: Path) -> None:
    found = ocp.load(saved, sharding=ROWS)
    assert (found["w"].sharding, found["b"].sharding) == (ROWS, ROWS)
    np.testing.assert_array_equal(found["w"], GRID)


def test_one_sharding_goes_before_those_of_the_target(saved: Path) -> None:
    found = ocp.load(saved, like=TREE, sharding=ROWS)
    assert (found["w"].sharding, found["b"].sharding) == (ROWS, ROWS)


def test_one_sharding_leaves_numpy_arrays_and_scalars_what_they_are(saved: Path) -> None:
    found = ocp.load(saved, sharding=ROWS)
    assert type(found["host"]) is np.ndarray
    assert (found["step"], found["name"]) == (3, "run")


def test_saved_numpy_array_that_the_target_wants_abstract_gets_the_sharding(saved: Path) -> None:
    like = {"host": jax.ShapeDtypeStruct((8, 8), np.float32)}
    for sharding in (ROWS, {"**": ROWS}):
        found = ocp.load(saved, like=like, unexpected="ignore", sharding=sharding)
        assert found["host"].sharding == ROWS


def test_target_of_numpy_stays_numpy_whatever_the_sharding(saved: Path) -> None:
    found = ocp.load(saved, like={"w": GRID}, unexpected="ignore", sharding=ROWS)
    assert type(found["w"]) is np.ndarray


def test_device_is_a_sharding_of_whole_arrays(saved: Path) -> None:
    for sharding in (DEVICE, {"w": DEVICE, "**": ROWS}):
        assert ocp.load(saved, sharding=sharding)["w"].sharding == SingleDeviceSharding(DEVICE)


def test_lazy_arrays_have_the_sharding_that_is_asked_for(saved: Path) -> None:
    found = ocp.load(saved, sharding=ROWS, lazy=True)["w"]
    assert (found.sharding, found.get().sharding) == (ROWS, ROWS)


def test_typed_keys_have_the_sharding_that_is_asked_for(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"rng": jax.random.split(jax.random.key(0), 8)})
    found = ocp.load(tmp_path / "x", sharding=ROWS)["rng"]
    assert found.sharding.spec == P("x")
    with pytest.raises(ValueError, match=r"^rng: shape \(8,\) cannot have .* 1 dimensions"):
        ocp.load(tmp_path / "x", sharding=NamedSharding(make_mesh(x=4, y=2), P("x", "y")))


def test_computed_and_fallback_arrays_have_the_sharding(saved: Path) -> None:
    rule = tf.Combine(("w", "w"), "twice", np.add)
    found = ocp.load(saved, transforms=[rule], fallback={"new": jnp.zeros(8)}, sharding=ROWS)
    assert found["twice"].sharding == ROWS
    assert found["new"].sharding == ROWS


def test_arrays_of_other_formats_become_jax_arrays_of_the_sharding(foreign: Path) -> None:
    replicated = NamedSharding(make_mesh(x=4), P())
    for given in ({"sharding": ROWS, "only": "**/w"}, {"sharding": replicated, "only": "**/b"}):
        found = jax.tree.leaves(ocp.load(foreign, **given))
        assert [leaf.sharding for leaf in found] == [given["sharding"]]


def test_scalars_and_strings_of_a_msgpack_file_are_not_placed(tmp_path: Path) -> None:
    ocp.save(tmp_path / "own", {"w": GRID, "step": 3, "name": "x"})
    ocp.convert(tmp_path / "own", tmp_path / "checkpoint_3", to="flax")
    found = ocp.load(tmp_path / "checkpoint_3", sharding=ROWS)
    assert found["w"].sharding == ROWS
    assert (found["step"], found["name"]) == (3, "x")


def test_plan_tells_which_leaves_are_resharded(saved: Path) -> None:
    assert ocp.plan(saved, sharding=ROWS).with_action("reshard") == ("b", "w")


WRONG: dict[str, Any] = {
    "text": "cpu:0",
    "spec": P("x"),
    "list": [1],
    "mesh": make_mesh(x=8),
    "number": 3,
    "array": jnp.zeros(2),
    "abstract mesh": NamedSharding(make_mesh(x=8).abstract_mesh, P("x")),
    "specs by patterns": {"**": P("x")},
    "a tree": {"w": {"x": ROWS}},
    "pairs": [("**", ROWS)],
}


@pytest.mark.parametrize("call", [ocp.load, ocp.plan])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_is_no_sharding_is_refused(wrong: object, call: Any, saved: Path) -> None:
    with pytest.raises(TypeError, match=r"^sharding.*: expected .*NamedSharding.*partition"):
        call(saved, sharding=wrong)


@pytest.mark.parametrize("wrong", ["cpu:0", P("x"), [1]])
def test_what_is_no_sharding_is_refused_in_restore_arguments(wrong: Any, saved: Path) -> None:
    handler = ocp.PyTreeHandler()
    args = {"w": ocp.ArrayRestoreArgs(sharding=wrong)}
    with pytest.raises(TypeError, match=r"^w: sharding: expected .*NamedSharding"):
        handler.restore(saved, args=ocp.args.PyTreeRestore(restore_args=args))
    with pytest.raises(TypeError, match=r"^fallback_sharding: expected"):
        ocp.StandardHandler().restore(saved, args=ocp.args.StandardRestore(fallback_sharding=wrong))
    with pytest.raises(TypeError, match=r"^sharding_tree: a: sharding: expected"):
        ocp.checkpoint_utils.construct_restore_args({"a": jnp.zeros(8)}, {"a": wrong})


@pytest.mark.parametrize(
    ("mesh", "axes"),
    [("x", P("x")), (make_mesh(x=8), "x"), (make_mesh(x=8), P("y")), (make_mesh(x=8), [P()])],
)
def test_mesh_and_axes_that_do_not_go_together_are_refused(
    mesh: Any, axes: Any, saved: Path
) -> None:
    args = {"w": ocp.ArrayRestoreArgs(mesh=mesh, mesh_axes=axes)}
    with pytest.raises(TypeError, match=r"^w: ArrayRestoreArgs: expected mesh="):
        ocp.PyTreeHandler().restore(saved, args=ocp.args.PyTreeRestore(restore_args=args))


@pytest.mark.parametrize("given", [{"mesh": make_mesh(x=8)}, {"mesh_axes": P("x")}])
def test_mesh_or_axes_alone_warn(given: Any) -> None:
    with pytest.warns(UserWarning, match="both") as caught:
        ocp.ArrayRestoreArgs(**given)
    assert caught[0].filename == __file__


def test_target_leaf_with_something_else_as_its_sharding_is_refused(saved: Path) -> None:
    class Leaf(jax.ShapeDtypeStruct):
        sharding: Any = "cpu:0"

    with pytest.raises(TypeError, match=r"^w: sharding: expected"):
        ocp.load(saved, like={"w": Leaf((8, 8), np.float32)}, unexpected="ignore")


@pytest.mark.parametrize("call", [ocp.load, ocp.plan])
@pytest.mark.parametrize("spec", [P(None, "x"), P("x", None)])
def test_spec_of_more_entries_than_dimensions_names_leaf_spec_and_shape(
    spec: P, call: Any, saved: Path
) -> None:
    wrong = NamedSharding(make_mesh(x=4), spec)
    with pytest.raises(ValueError, match=r"^b: shape \(8,\) cannot .*'x'.* 2 entries, .* 1 dim"):
        call(saved, sharding=wrong)


def test_computed_leaf_whose_sharding_does_not_fit_is_named(saved: Path) -> None:
    rule = tf.Combine(("b", "b"), "twice", lambda a, _: a[:3])
    with pytest.raises(ValueError, match=r"^twice: shape \(3,\) cannot .*evenly divide"):
        ocp.load(saved, transforms=[rule], only="twice", sharding=ROWS)
