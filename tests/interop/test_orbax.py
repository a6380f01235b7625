"""Exchange checkpoints with the Orbax that is installed, in both directions."""

from __future__ import annotations

import itertools
import json
import tarfile
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as orbax
import pytest
from orbax.checkpoint import v1 as orbax_v1
from orbax.checkpoint._src.metadata.pytree_metadata_options import PyTreeMetadataOptions

import orbit_ckpt as ocp
from tests.cells import cells
from tests.interop.expected import checkpoints, comparison_for
from tests.programs import run_script
from tests.soak import SOAK
from tests.support import assert_same_tree, put

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("quiet_orbax")]

LAYOUTS = [
    pytest.param(
        {"use_ocdbt": ocdbt, "use_zarr3": zarr3, "use_compression": compress},
        id="-".join(
            (
                "ocdbt" if ocdbt else "files",
                "zarr3" if zarr3 else "zarr2",
                "zstd" if compress else "plain",
            )
        ),
    )
    for ocdbt, zarr3, compress in itertools.product((True, False), repeat=3)
]
OPPOSITE = cells(LAYOUTS, lambda layout: len(set(layout.values())) == 1)
"""In a usual run the layout that differs from Orbax's oldest in everything, and that one."""


def arrays() -> dict[str, Any]:
    """Return JAX and numpy arrays of every kind that Orbax can restore."""
    values = np.arange(48, dtype=np.float32).reshape(8, 6) / 7 - 3
    noise = np.random.default_rng(0).normal(size=(128, 96)).astype(np.float32)
    jax_dtypes = "bool int8 uint8 int16 int32 uint32 float16 bfloat16 float32 complex64 int4"
    fp8 = "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e4m3b11fnuz"
    large_dtypes = "bfloat16 float16 int16 int32 complex64 int8 float8_e4m3fn bool"
    np_dtypes = "int64 uint64 float64 complex128 float16 int16 uint8 bool"
    return {
        "jax": {
            name: jnp.asarray(values).astype(name) for name in (jax_dtypes + " " + fp8).split()
        },
        "numpy": {name: values.astype(name) for name in np_dtypes.split()},
        "ml_dtypes": {
            "bfloat16": values.astype(ml_dtypes.bfloat16),
            "int4": np.arange(-8, 8, dtype=np.int8).astype(ml_dtypes.int4),
        },
        "zero_dimensional": jnp.float32(2.5),
        "split": put(values, "x", x=8),
        "split_twice": put(values, "x", "y", x=4, y=2),
        "partly_replicated": put(values, "x", x=4, y=2),
        "replicated": put(values, x=8),
        "large": noise,
        "large_dtypes": {
            name: jnp.asarray(noise[:, :-1] * 9).astype(name) for name in large_dtypes.split()
        },
        "large_split": put(noise, None, "x", x=8),
        "keys": jax.random.split(jax.random.key(3), 4),
        "rbg_key": jax.random.key(1, impl="rbg"),
        "raw_key": jax.random.PRNGKey(7),
    }


def state() -> dict[str, Any]:
    """Return a tree with every leaf that Orbax's PyTree handler has."""
    params = {"dense": {"kernel": jnp.ones((6, 4)), "bias": jnp.zeros(4, jnp.bfloat16)}}
    return {
        **arrays(),
        "scalars": {"int": 3, "big": 2**40, "float": 2.5, "bool": True},
        "numpy_scalar": np.float32(1.5),
        "text": "a text with 'quotes' and ünïcode",
        "empty": {"none": None, "dict": {}, "list": [], "tuple": ()},
        "nested": [1, (jnp.arange(3), {"a": [np.arange(2)]})],
        "opt_state": optax.adam(1e-3).init(params),
        "names": {"a b": 1, "a/b": jnp.arange(2), "0": 2},
    }


def assert_same_values(actual: object, expected: object) -> None:
    """Assert equal leaves, names and bits; tuples and lists, attributes and keys count as equal."""
    wanted = jax.tree_util.tree_flatten_with_path(expected)[0]
    found = jax.tree_util.tree_flatten_with_path(actual)[0]
    assert [names(path) for path, _ in found] == [names(path) for path, _ in wanted]
    for (path, value), (_, other) in zip(found, wanted, strict=True):
        assert_same_leaf(value, other, jax.tree_util.keystr(path))


def names(path: Any) -> list[str]:
    """Return the names of a path's keys."""
    return [
        str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path
    ]


def assert_same_leaf(value: Any, other: Any, where: str) -> None:
    """Assert two leaves to be of one dtype and shape and equal in every bit."""
    if isinstance(other, jax.Array) and jnp.issubdtype(other.dtype, jax.dtypes.prng_key):
        assert jax.random.key_impl(value) == jax.random.key_impl(other), where
        value, other = jax.random.key_data(value), jax.random.key_data(other)
    if isinstance(other, str):
        assert value == other, where
        return
    assert isinstance(value, jax.Array) == isinstance(other, jax.Array), where
    first, second = np.asarray(value), np.asarray(other)
    if not isinstance(other, np.generic):  # Orbax makes Python scalars of them
        assert first.dtype == second.dtype, where
    if first.dtype.name in ("int2", "int4"):
        first, second = first.astype(np.int8), second.astype(np.int8)
    assert first.shape == second.shape, where
    assert first.astype(second.dtype).tobytes() == second.tobytes(), where


@pytest.mark.slow
def test_every_layout_that_orbax_writes_restores_exactly(tmp_path: Path) -> None:
    script = Path(__file__).with_name("write_reference.py")
    written = tmp_path / "written"
    # Orbax takes a minute for these; `tests/golden` has what the same release has written
    patterns = () if SOAK else ("^(?!pytree-|standard$|v1-default$)",)
    run_script(script, written, *patterns).check_returncode()
    wrong: list[str] = []
    with jax.enable_x64(True):
        for name, path, tree in checkpoints(written):
            found = comparison_for(name).differences(tree, ocp.load(path))
            wrong += [f"{name} {line}" for line in found]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("layout", OPPOSITE)
def test_orbax_pytree_restores_every_leaf(tmp_path: Path, layout: dict[str, Any]) -> None:
    tree = state()
    if not layout["use_ocdbt"]:
        del tree["names"]["a/b"]  # Orbax finds no array in a directory of a directory
    ocp.Checkpointer(ocp.PyTreeHandler(**layout)).save(tmp_path / "c", tree)
    restored = orbax.PyTreeCheckpointer().restore(tmp_path / "c")
    assert_same_values(restored, tree)
    assert restored["scalars"] == tree["scalars"]
    assert restored["empty"] == {"none": None, "dict": {}, "list": [], "tuple": ()}
    del tree["numpy_scalar"]  # as a target Orbax does not know it
    ocp.Checkpointer(ocp.PyTreeHandler(**layout)).save(tmp_path / "c", tree, force=True)
    args = orbax.checkpoint_utils.construct_restore_args(tree)
    restored = orbax.PyTreeCheckpointer().restore(tmp_path / "c", item=tree, restore_args=args)
    assert jax.tree.structure(restored) == jax.tree.structure(tree)
    assert restored["split"].sharding == tree["split"].sharding
    assert_same_values(restored, tree)


@pytest.mark.slow
@pytest.mark.parametrize("layout", OPPOSITE)
def test_orbax_standard_restores_arrays(tmp_path: Path, layout: dict[str, Any]) -> None:
    tree = arrays()
    handler = ocp.StandardHandler(use_ocdbt=layout["use_ocdbt"], use_zarr3=layout["use_zarr3"])
    ocp.Checkpointer(handler).save(tmp_path / "c", tree)
    with orbax.StandardCheckpointer() as standard:
        assert_same_values(standard.restore(tmp_path / "c"), tree)
        target = jax.tree.map(orbax.utils.to_shape_dtype_struct, tree)
        restored = standard.restore(tmp_path / "c", target)
    assert restored["split_twice"].sharding == tree["split_twice"].sharding
    assert_same_values(restored, tree)


@pytest.mark.slow
@pytest.mark.parametrize("layout", OPPOSITE)
def test_orbax_v1_loads_arrays(tmp_path: Path, layout: dict[str, Any]) -> None:
    tree = arrays()
    ocp.Checkpointer(ocp.PyTreeHandler(**layout)).save(tmp_path / "c", tree)
    assert_same_values(orbax_v1.load(str(tmp_path / "c")), tree)
    assert_same_values(orbax_v1.load(str(tmp_path / "c"), tree), tree)


@pytest.mark.slow
@pytest.mark.parametrize("layout", OPPOSITE)
def test_orbax_restores_what_was_lazy(tmp_path: Path, layout: dict[str, Any]) -> None:
    tree = arrays()
    handler = orbax.PyTreeCheckpointHandler(
        use_ocdbt=layout["use_ocdbt"],
        use_zarr3=layout["use_zarr3"],
        use_compression=layout["use_compression"],
    )
    orbax.Checkpointer(handler).save(tmp_path / "theirs", tree)
    lazy = ocp.load(tmp_path / "theirs", lazy=True)
    assert np.array_equal(lazy["large_split"][::7, -1], np.asarray(tree["large_split"])[::7, -1])
    assert np.array_equal(lazy["large"][3:5], np.asarray(tree["large"])[3:5])
    ocp.Checkpointer(ocp.PyTreeHandler(**layout)).save(tmp_path / "ours", lazy)
    restored = orbax.PyTreeCheckpointer().restore(tmp_path / "ours")
    assert restored["split_twice"].sharding == tree["split_twice"].sharding
    assert_same_values(restored, tree)
    assert_same_values(orbax_v1.load(str(tmp_path / "ours")), tree)


def test_orbax_finds_the_handler_by_the_recorded_name(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {"a": np.arange(3)}, custom_metadata={"note": "x"})
    metadata: Any = orbax.PyTreeCheckpointer().metadata(tmp_path / "c")
    assert metadata.item_handlers == orbax.PyTreeCheckpointHandler.typestr()
    assert metadata.custom_metadata == {"note": "x"}
    assert metadata.item_metadata.tree["a"].shape == (3,)
    assert orbax.path.step.is_path_finalized(tmp_path / "c")


def test_orbax_reads_rich_types_written_here(tmp_path: Path) -> None:
    tree = {"pair": (1, [np.arange(2)]), "opt": optax.adam(1e-3).init({"w": jnp.ones(2)})}
    ocp.save(tmp_path / "c", tree)
    options = PyTreeMetadataOptions(support_rich_types=True)
    handler = orbax.PyTreeCheckpointHandler(pytree_metadata_options=options)
    restored = orbax.Checkpointer(handler).restore(tmp_path / "c")
    assert isinstance(restored["pair"], tuple)
    assert restored["opt"][0]._fields == tree["opt"][0]._fields


def test_text_under_a_key_with_a_slash_is_exchanged(tmp_path: Path) -> None:
    tree = {"a/b": "here", "a": {"c": "there"}, "plain": "text"}
    ocp.save(tmp_path / "ours", tree)
    assert orbax.PyTreeCheckpointer().restore(tmp_path / "ours") == tree
    orbax.PyTreeCheckpointer().save(tmp_path / "theirs", tree)
    assert ocp.load(tmp_path / "theirs") == tree


@pytest.mark.parametrize("use_zarr3", [True, False], ids=["zarr3", "zarr2"])
def test_orbax_restores_keys_that_are_named_like_chunks(use_zarr3: bool, tmp_path: Path) -> None:
    tree = {name: np.arange(12.0).reshape(3, 4) for name in ("b/c", "d/0", "e/0.0", "f/c/0", "c")}
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=use_zarr3)
    ocp.Checkpointer(handler).save(tmp_path / "c", tree)
    found = orbax.PyTreeCheckpointer().restore(tmp_path / "c")
    assert sorted(found) == sorted(tree)
    for name, value in tree.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.fixture
def v1_checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint of Orbax's v1 API with a tree and JSON items."""
    registry = orbax_v1.handlers.local_registry()
    for name in ("metadata", "config"):
        registry.add(orbax_v1.handlers.JsonHandler, checkpointable_name=name)
    options = orbax_v1.options.CheckpointablesOptions(registry=registry)
    items = {"state": {"a": np.arange(3)}, "metadata": {"x": [1, None]}, "config": "text"}
    with orbax_v1.Context(checkpointables_options=options):
        orbax_v1.save_checkpointables(str(tmp_path / "c"), items)
    return tmp_path / "c"


def test_json_items_of_orbax_v1_are_restored(v1_checkpoint: Path) -> None:
    items = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    found = items.restore(v1_checkpoint)
    assert (found.metadata, found.config) == ({"x": [1, None]}, "text")
    assert found.state["a"].tolist() == [0, 1, 2]
    wanted = ocp.args.Composite(metadata=ocp.args.JsonRestore())
    assert items.restore(v1_checkpoint, args=wanted).metadata == {"x": [1, None]}
    assert ocp.load(v1_checkpoint)["a"].tolist() == [0, 1, 2]


def test_what_orbax_v1_wrote_lacks_no_manifest(
    v1_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = ocp.verify(v1_checkpoint)
    assert report.is_intact, report
    ocp.load(v1_checkpoint)
    assert not [r for r in caplog.records if "orbit_manifest" in r.getMessage()]


def test_metrics_and_json_items_of_an_orbax_v1_run_are_restored(tmp_path: Path) -> None:
    registry = orbax_v1.handlers.local_registry()
    registry.add(orbax_v1.handlers.JsonHandler, checkpointable_name="config")
    options = orbax_v1.options.CheckpointablesOptions(registry=registry)
    with (
        orbax_v1.Context(checkpointables_options=options),
        orbax_v1.training.Checkpointer(str(tmp_path / "run")) as saver,
    ):
        items = {"state": {"a": np.arange(3)}, "config": {"x": 1}}
        saver.save_checkpointables(1, items, metrics={"loss": 1.0})
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        found = manager.restore()
        assert (found.config, found.metrics) == ({"x": 1}, {"loss": 1.0})
        assert manager.metrics(1) == {"loss": 1.0}


def test_an_item_of_an_unknown_handler_does_not_keep_the_others_from_being_restored(
    v1_checkpoint: Path,
) -> None:
    (v1_checkpoint / "config" / "more").touch()
    file = v1_checkpoint / "_CHECKPOINT_METADATA"
    step = json.loads(file.read_text())
    step["item_handlers"]["config"] = "some.module.Handler"
    file.write_text(json.dumps(step))
    items = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = items.restore(v1_checkpoint)
    assert sorted(found) == ["metadata", "state"]
    (warning,) = [one for one in caught if one.filename == __file__]
    assert "item 'config' is left out: no item handler 'some.module.Handler'" in str(
        warning.message
    )
    assert ocp.load(v1_checkpoint)["a"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"some\.module\.Handler"):
        items.restore(v1_checkpoint, args=ocp.args.Composite(config=None))


@pytest.mark.parametrize(
    "name",
    ["aggregate-containers", "aggregate-inline", "aggregate-mixed-files"],
)
def test_a_structure_in_a_file_of_another_name_is_read(name: str, tmp_path: Path) -> None:
    golden = Path(__file__).parent.parent / "golden" / "orbax-0.2.7.tar.gz"
    with tarfile.open(golden) as tar:
        members = [one for one in tar.getmembers() if one.name.startswith(f"{name}/")]
        tar.extractall(tmp_path, members, filter="data")
    path = tmp_path / name
    expected = ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(path)
    (path / "checkpoint").rename(path / "agg")
    handler = ocp.PyTreeCheckpointHandler(aggregate_filename="agg")
    assert_same_tree(ocp.Checkpointer(handler).restore(path), expected)
    theirs = orbax.PyTreeCheckpointHandler(aggregate_filename="agg")
    found = orbax.Checkpointer(theirs).restore(path)
    assert jax.tree.structure(found) == jax.tree.structure(expected)


@pytest.mark.parametrize("has_handlers", [False, True], ids=["default", "metadata_key"])
def test_arrays_whose_metadata_have_another_name_are_read(
    has_handlers: bool, tmp_path: Path
) -> None:
    def registry(library: Any, create: Any) -> Any:
        kinds = {jax.Array: "ArrayHandler", np.ndarray: "NumpyHandler", float: "ScalarHandler"}
        return create(
            *((kind, getattr(library, name)(metadata_key="mk")) for kind, name in kinds.items())
        )

    types = orbax.type_handlers
    theirs = orbax.PyTreeCheckpointHandler(
        use_ocdbt=False,
        use_zarr3=False,
        type_handler_registry=registry(types, types.create_type_handler_registry),
    )
    tree = {"a": np.arange(3), "b": jnp.ones((2, 2)), "c": 1.5}
    orbax.Checkpointer(theirs).save(tmp_path / "c", tree)
    assert (tmp_path / "c" / "a" / "mk").is_file()
    own = {}
    if has_handlers:
        create = ocp.type_handlers.create_type_handler_registry
        own = {"type_handler_registry": registry(ocp.type_handlers, create)}
    found = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**own)).restore(tmp_path / "c")
    assert_same_tree(found, tree)
    assert ocp.verify(tmp_path / "c").is_intact
