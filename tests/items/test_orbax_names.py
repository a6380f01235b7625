"""Names of Orbax's `handlers` and `args` beyond the handlers themselves."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt import args, handlers, options
from orbit_ckpt._src.storage import staging
from orbit_ckpt._src.type_handlers import array
from tests.support import assert_same_tree

TREE = {"w": np.arange(6.0).reshape(2, 3), "step": 3, "name": "run"}


def test_base_pytree_handler_saves_and_restores(tmp_path: Path) -> None:
    handler = ocp.BasePyTreeCheckpointHandler(save_concurrent_bytes=100, use_ocdbt=False)
    checkpointer = ocp.Checkpointer(handler)
    checkpointer.save(tmp_path / "x", args=args.BasePyTreeSave(TREE, custom_metadata={"a": 1}))
    assert_same_tree(checkpointer.restore(tmp_path / "x"), TREE)
    part = args.BasePyTreeRestore({"step": 0}, partial_restore=True)
    assert checkpointer.restore(tmp_path / "x", args=part) == {"step": 3}
    found: Any = checkpointer.metadata(tmp_path / "x").item_metadata
    assert found.custom_metadata == {"a": 1}


@pytest.mark.interop
def test_orbax_and_this_library_read_each_others_base_pytrees(tmp_path: Path) -> None:
    orbax: Any = pytest.importorskip("orbax.checkpoint")
    tree = {"w": np.arange(3), "n": 2}
    for name, written, read in (("ours", ocp, orbax), ("orbax", orbax, ocp)):
        written.Checkpointer(written.BasePyTreeCheckpointHandler()).save(
            tmp_path / name, args=_base_save(written, tree)
        )
        found = read.Checkpointer(read.BasePyTreeCheckpointHandler()).restore(tmp_path / name)
        assert_same_tree(found, tree)
    step = orbax.CheckpointManager(
        tmp_path / "run", item_handlers=orbax.BasePyTreeCheckpointHandler()
    )
    step.save(0, args=_base_save(orbax, tree))
    step.close()
    assert_same_tree(ocp.CheckpointManager(tmp_path / "run").restore(0), tree)


def _base_save(library: Any, tree: object) -> Any:
    kind, _ = library.args.get_registered_args_cls(library.BasePyTreeCheckpointHandler)
    return kind(tree)


def test_part_of_a_tree_is_not_saved_into_a_complete_checkpoint() -> None:
    with pytest.raises(ValueError, match="partial_save_mode=True is not supported"):
        handlers.BasePyTreeSaveArgs({}, partial_save_mode=True)


def test_limit_bounds_what_is_copied_from_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held: list[int] = []
    copy = staging.copy_to_host

    def spy(shards: Any, *args: Any) -> Any:
        held.append(sum(shard.nbytes for shard in shards))
        return copy(shards, *args)

    monkeypatch.setattr(staging, "copy_to_host", spy)
    monkeypatch.setattr(staging, "is_on_host", lambda _: False)
    monkeypatch.setattr(array, "is_on_host", lambda _: False)
    tree = [jnp.full(256, i, jnp.float32) for i in range(7)]
    limits = options.MemoryLimitOptions(max_transfer_concurrent_gb=2.1e-6)
    handler = ocp.BasePyTreeCheckpointHandler(
        save_device_host_concurrent_bytes="auto", memory_limit_options=limits
    )
    with ocp.AsyncCheckpointer(handler) as checkpointer:
        checkpointer.save(tmp_path / "x", tree)
    assert sorted(held) == [1024, 2048, 2048, 2048]


def test_validation_cannot_be_turned_off() -> None:
    with pytest.warns(UserWarning, match="enable_post_merge_validation=False does nothing here"):
        ocp.BasePyTreeCheckpointHandler(enable_post_merge_validation=False)


# Registered arguments


@pytest.mark.parametrize("handler", [ocp.StandardHandler, ocp.StandardHandler()])
def test_arguments_of_a_handler_are_found(handler: object) -> None:
    assert args.has_registered_args(handler)
    found = args.get_registered_args_cls(handler)
    assert found == (args.StandardSave, args.StandardRestore)


def test_handler_of_arguments_is_found() -> None:
    assert args.get_registered_handler_cls(args.JsonSave) is ocp.JsonHandler
    assert args.get_registered_handler_cls(args.JsonRestore()) is ocp.JsonHandler


class Own(ocp.CheckpointHandler):
    """A handler with nothing but what it must have."""

    @override
    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None: ...

    @override
    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> object: ...


def test_what_is_not_registered_is_named() -> None:
    assert not args.has_registered_args(Own)
    with pytest.raises(ValueError, match="Own has no argument classes"):
        args.get_registered_args_cls(Own())
    with pytest.raises(ValueError, match="register_with_handler"):
        args.get_registered_handler_cls(args.CheckpointArgs)


# Registries


def test_default_registry_has_the_handlers_of_the_items(tmp_path: Path) -> None:
    json = ocp.JsonHandler("data.json")
    registry = handlers.create_default_handler_registry(config=json, state=ocp.StandardHandler())
    assert registry.get("config", args.JsonSave) is json
    with pytest.raises(handlers.handler_registration.NoEntryError):
        registry.get("other", args.JsonSave)
    with pytest.raises(handlers.handler_registration.AlreadyExistsError, match="'config'"):
        registry.add("config", args.JsonSave, json)
    with ocp.CheckpointManager(tmp_path, handler_registry=registry) as manager:
        manager.save(0, args=args.Composite(config=args.JsonSave({"a": 1})))
    assert (tmp_path / "0" / "config" / "data.json").exists()


class OwnRegistry(ocp.CheckpointHandlerRegistry):
    """A registry as a program may write one."""

    def __init__(self) -> None:
        self.entries: dict[Any, Any] = {}

    @override
    def add(self, item: str | None, args: Any, handler: Any = None) -> None:
        self.entries[item, args] = handler

    @override
    def get(self, item: str | None, args: Any) -> Any:
        return self.entries[item, args]

    @override
    def has(self, item: str | None, args: Any) -> bool:
        return (item, args) in self.entries

    @override
    def get_all_entries(self) -> Mapping[Any, Any]:
        return self.entries


def test_registry_of_a_program_is_used(tmp_path: Path) -> None:
    registry = OwnRegistry()
    registry.add("config", args.JsonSave, ocp.JsonHandler("own.json"))
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler(handler_registry=registry))
    checkpointer.save(tmp_path / "x", args.Composite(config=args.JsonSave({"a": 1})))
    assert (tmp_path / "x" / "config" / "own.json").exists()


# Interfaces


def test_composite_options_warn_only_if_set() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ocp.CompositeHandler(composite_options=ocp.CompositeOptions())
    given = ocp.CompositeOptions(file_options=options.FileOptions(0o700))
    with pytest.warns(UserWarning, match="composite_options=.*give it the options"):
        ocp.CompositeHandler(composite_options=given)


def test_handler_without_methods_of_its_own_inherits_defaults() -> None:
    handler = Own()
    handler.finalize("x")
    handler.close()
    assert handler.metadata("x") is None
    assert handler.typestr().endswith(".Own")


def test_checkpointers_and_managers_have_orbax_interfaces(tmp_path: Path) -> None:
    assert isinstance(ocp.PyTreeCheckpointer(), ocp.AbstractCheckpointer)
    with ocp.CheckpointManager(tmp_path) as manager:
        assert isinstance(manager, ocp.AbstractCheckpointManager)
    assert issubclass(ocp.StandardCheckpointer, ocp.AbstractCheckpointer)
    assert isinstance(ocp.future.NoopFuture(), ocp.Future)
