"""The helpers of `test_utils`, in tests as people write them with Orbax's."""

from __future__ import annotations

import subprocess
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest
from etils import epath
from orbax.checkpoint import test_utils as theirs

import orbit_ckpt as ocp
from orbit_ckpt import test_utils
from orbit_ckpt.type_handlers import get_type_handler, register_type_handler

CASE = unittest.TestCase()


@pytest.fixture(autouse=True)
def _quiet_orbax() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_nothing_else_needs_to_be_installed() -> None:
    script = (
        "import sys; sys.modules['pytest'] = sys.modules['hypothesis'] = None\n"
        "from orbit_ckpt.test_utils import *"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_directory_is_created_empty(tmp_path: Path) -> None:
    path = test_utils.erase_and_create_empty(tmp_path / "c")
    assert isinstance(path, epath.Path)
    (path / "a" / "b").mkdir(parents=True)
    assert not list(test_utils.erase_and_create_empty(str(path)).iterdir())


def test_directory_is_emptied(tmp_path: Path) -> None:
    assert not test_utils.empty_directory(tmp_path / "missing")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "c").touch()
    assert test_utils.empty_directory(tmp_path)
    assert not list(tmp_path.iterdir())


def test_directory_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").touch()
    with caplog.at_level("INFO"):
        test_utils.print_directory(tmp_path)
    assert caplog.messages == [f"{tmp_path}/", "..a/", "....b"]
    with pytest.raises(ValueError, match="is no directory"):
        test_utils.print_directory(tmp_path / "c")


@pytest.mark.interop
def test_interrupted_save_is_that_of_orbax(tmp_path: Path) -> None:
    files = []
    for module, name in ((test_utils, "ours"), (theirs, "theirs")):
        root = tmp_path / name
        directory: Any = epath.Path(root)
        made = module.save_fake_tmp_dir(directory, 3, "params", ["a", "b"], "step_")
        assert made.is_dir()
        files.append(sorted(str(path.relative_to(root)) for path in root.rglob("*")))
    assert files[0] == files[1]
    with ocp.CheckpointManager(tmp_path / "ours") as manager:
        assert manager.all_steps() == []


def test_temporary_directory_does_not_replace_a_checkpoint(tmp_path: Path) -> None:
    path = epath.Path(tmp_path / "c")
    path.mkdir()
    with pytest.raises(FileExistsError, match="is complete"):
        test_utils.create_tmp_directory(path, path)


@pytest.mark.interop
@pytest.mark.parametrize("reverse", [True, False])
def test_trees_are_those_of_orbax(reverse: bool) -> None:
    test_utils.assert_tree_equal(CASE, theirs.setup_pytree(3), test_utils.setup_pytree(3))
    ours, expected = (
        module.setup_sharded_pytree(reverse_devices=reverse) for module in (test_utils, theirs)
    )
    assert jax.tree.map(lambda x: x.sharding, ours[0]) == jax.tree.map(
        lambda x: x.sharding, expected[0]
    )
    assert ours[1:] == expected[1:]
    test_utils.assert_tree_equal(CASE, expected[0], ours[0])
    doubled = [module.apply_function(ours[0], lambda x: 2 * x) for module in (test_utils, theirs)]
    test_utils.assert_tree_equal(CASE, *doubled)
    replicated = test_utils.replicate_sharded_array(ours[0]["b"])
    assert replicated.is_fully_replicated
    if not reverse:  # an error of JAX in Orbax
        test_utils.assert_array_equal(
            CASE, theirs.replicate_sharded_array(ours[0]["b"]), replicated
        )
    numbers = [
        module.create_sharded_array(3, ours[1]["a"], jax.P()) for module in (test_utils, theirs)
    ]
    test_utils.assert_array_equal(CASE, *numbers)


DIFFERENT: list[tuple[Any, Any]] = [
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    ({"a": 1}, {"a": 1.0}),
    ({"a": np.ones(2)}, {"a": np.zeros(2)}),
    ({"a": np.ones(2)}, {"a": np.ones(2, np.float32)}),
    ({"a": np.ones(2, np.float32)}, {"a": jnp.ones(2)}),
    ({"a": jnp.ones(2)}, {"a": jnp.zeros(2)}),
    ({"a": jax.random.key(0)}, {"a": jax.random.key(1)}),
    ({"a": jax.random.key(0)}, {"a": jax.random.key(0, impl="rbg")}),
]


@pytest.mark.parametrize(("expected", "actual"), DIFFERENT)
def test_difference_of_trees_is_noticed(expected: Any, actual: Any) -> None:
    test_utils.assert_tree_equal(CASE, expected, expected)
    with pytest.raises(AssertionError):
        test_utils.assert_tree_equal(CASE, expected, actual)


def test_structures_and_distances_are_compared() -> None:
    test_utils.assert_tree_same_structure(CASE, {"a": 1}, {"a": 2})
    test_utils.assert_every_n_is_x_apart(CASE, [0, 3, 1, 4], 2, 3)
    fails: list[Callable[[], object]] = [
        lambda: test_utils.assert_tree_same_structure(CASE, {"a": 1}, {"a": [2]}),
        lambda: test_utils.assert_every_n_is_x_apart(CASE, [0, 1, 2, 4], 2, 3),
        lambda: test_utils.assert_every_n_is_x_apart(CASE, [0, 1, 4], 2, 1),
    ]
    for fail in fails:
        with pytest.raises(AssertionError):
            fail()


@pytest.mark.interop
@pytest.mark.parametrize("use_zarr3", [True, False])
@pytest.mark.parametrize("use_ocdbt", [True, False])
@pytest.mark.parametrize("library", [ocp, orbax], ids=["ours", "orbax"])
def test_compression_is_found(
    library: Any, use_ocdbt: bool, use_zarr3: bool, tmp_path: Path
) -> None:
    for compress in (True, False):
        handler = library.PyTreeCheckpointHandler(
            use_ocdbt=use_ocdbt, use_zarr3=use_zarr3, use_compression=compress
        )
        path = tmp_path / str(compress)
        library.Checkpointer(handler).save(path, {"a": np.zeros(10_000)})
        assert test_utils.is_compression_used(path, "a", use_zarr3, use_ocdbt) is compress


def test_fields_of_metadata_are_selected() -> None:
    tree = {"a": np.ones(3), "b": 1}
    found = test_utils.filter_metadata_fields(tree, ["shape", "nothing"])
    assert found == {"a": {"shape": (3,)}, "b": {}}


def test_background_save_fails_on_purpose(tmp_path: Path) -> None:
    tree = test_utils.setup_pytree()
    with ThreadPoolExecutor() as executor:
        handler = test_utils.ErrorCheckpointHandler(ocp.PyTreeCheckpointHandler(), executor)
        checkpointer = ocp.AsyncCheckpointer(handler)
        checkpointer.save(tmp_path / "c", args=test_utils.ErrorSaveArgs(tree))
        with pytest.raises(ocp.errors.BackgroundSaveError, match="on purpose"):
            checkpointer.wait_until_finished()
        assert not (tmp_path / "c").exists()
        checkpointer.close()
        ocp.save(tmp_path / "sound", tree)
        args = test_utils.ErrorRestoreArgs()
        test_utils.assert_tree_equal(CASE, tree, handler.restore(tmp_path / "sound", args=args))


def test_handler_completes_the_directory(tmp_path: Path) -> None:
    handler, tree, restore_args = test_utils.concurrent_gb_test_setup()
    path = test_utils.erase_and_create_empty(tmp_path / "c")
    handler.save(path, args=ocp.args.PyTreeSave(tree))
    found = handler.restore(path, args=ocp.args.PyTreeRestore(restore_args=restore_args))
    test_utils.assert_tree_equal(CASE, tree, found)


class Own:
    pass


class OwnHandler(ocp.type_handlers.ScalarHandler):
    def typestr(self) -> str:
        return "own"


def test_type_handlers_are_registered_for_a_block() -> None:
    handler, other = OwnHandler(), OwnHandler()
    with test_utils.register_type_handler(int, handler, None):
        assert get_type_handler(int) is handler
        with test_utils.global_type_handler_registry_context():
            register_type_handler(int, other, override=True)
            assert get_type_handler(int) is other
        with test_utils.ocdbt_checkpoint_context(True, None):
            register_type_handler(int, other, override=True)
        assert get_type_handler(int) is handler
    assert get_type_handler(int).typestr() == "scalar"


def test_restore_arguments_are_those_of_one_replica() -> None:
    mesh = jax.make_mesh((8,), ("x",))
    args = test_utils.create_single_replica_restore_args(jnp.ones(8), mesh, jax.P("x"))
    assert (args.global_shape, args.dtype) == ((8,), np.float32)
    assert args.sharding == jax.sharding.NamedSharding(mesh, jax.P("x"))
    saved = test_utils.get_composite_save_args({"a": 1})
    assert saved.state.item == {"a": 1}


@test_utils.barrier_compatible_test
class TestClass:
    def test_class_is_unchanged(self) -> None:
        test_utils.set_tensorstore_driver_for_test()
        test_utils.sync_global_processes("name")
