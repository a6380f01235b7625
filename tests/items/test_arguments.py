"""Which arguments go to which handler."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.items.arguments import CheckpointArgs, register_with_handler
from orbit_ckpt.errors import CheckpointNotFoundError

TREE = {"a": 1, "b": 2}


class PickleHandler(ocp.CheckpointHandler):
    """A handler from before there were argument classes."""

    def save(self, directory: Any, item: Any, protocol: int = 4) -> None:  # type: ignore[override]
        (directory / "data").write_bytes(pickle.dumps((item, protocol), protocol))

    def restore(self, directory: Any, item: Any = None) -> Any:  # type: ignore[override]
        return (*pickle.loads((directory / "data").read_bytes()), item)  # noqa: S301 - its own

    def structure(self, directory: Any) -> Any:
        raise NotImplementedError(directory)

    def finalize(self, directory: Any) -> None:
        """Nothing remains to be done."""

    def close(self) -> None:
        """There is nothing to give up."""


class AsyncPickleHandler(PickleHandler):
    async def async_save(self, directory: Any, item: Any, protocol: int = 4) -> None:
        self.save(directory, item, protocol)


@pytest.mark.parametrize("kind", [ocp.Checkpointer, ocp.AsyncCheckpointer])
@pytest.mark.parametrize("handler", [PickleHandler, AsyncPickleHandler])
def test_a_handler_without_argument_classes_is_given_what_the_caller_gives(
    handler: Any, kind: Any, tmp_path: Path
) -> None:
    with kind(handler()) as checkpointer:
        checkpointer.save(tmp_path / "x", TREE)
        checkpointer.save(tmp_path / "y", TREE, protocol=2)
        assert checkpointer.restore(tmp_path / "x") == (TREE, 4, None)
        assert checkpointer.restore(tmp_path / "y", item=3) == (TREE, 2, 3)
        assert checkpointer.metadata(tmp_path / "x").item_metadata is None


@pytest.mark.parametrize("handler", [PickleHandler, AsyncPickleHandler])
def test_a_manager_passes_items_to_a_handler_without_argument_classes(
    handler: Any, tmp_path: Path
) -> None:
    with ocp.CheckpointManager(tmp_path / "one", item_handlers=handler()) as manager:
        manager.save(1, TREE)
        manager.wait_until_finished()
        assert manager.restore(1) == (TREE, 4, None)
        assert manager.restore(1, items=5) == (TREE, 4, 5)
    handlers = {"state": handler(), "extra": ocp.JsonHandler()}
    with ocp.CheckpointManager(tmp_path / "two", item_handlers=handlers) as manager:
        manager.save(1, {"state": TREE, "extra": {"n": 1}}, save_kwargs={"state": {"protocol": 3}})
        manager.wait_until_finished()
        assert dict(manager.restore(1)) == {"state": (TREE, 3, None), "extra": {"n": 1}}


def test_a_manager_of_a_checkpointer_whose_handler_has_no_argument_classes(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(PickleHandler())
    with ocp.CheckpointManager(tmp_path, checkpointer) as manager:
        manager.save(1, TREE)
        assert manager.restore(1) == (TREE, 4, None)


def tree_checkpointer() -> ocp.Checkpointer:
    return ocp.PyTreeCheckpointer()


@pytest.mark.parametrize(
    "save",
    [
        lambda c, path: c.save(path, TREE, ocp.args.PyTreeSave(TREE)),
        lambda c, path: c.save(path, ocp.args.PyTreeSave(TREE), None),
        lambda c, path: c.save(path, None, args=ocp.args.PyTreeSave(TREE)),
        lambda c, path: c.save(path, item=TREE, save_args=None, args=ocp.args.PyTreeSave(TREE)),
    ],
    ids=["tree", "None", "None by name", "by name"],
)
def test_arguments_that_say_the_same_as_an_args_object_are_accepted_beside_it(
    save: Callable[..., Any], tmp_path: Path
) -> None:
    save(tree_checkpointer(), tmp_path / "x")
    assert ocp.load(tmp_path / "x") == TREE


def test_none_beside_an_args_object_of_a_restore_is_accepted(tmp_path: Path) -> None:
    checkpointer = tree_checkpointer()
    checkpointer.save(tmp_path / "x", TREE)
    args = ocp.args.PyTreeRestore({"a": 0}, partial_restore=True)
    assert checkpointer.restore(tmp_path / "x", args, item=None) == {"a": 1}
    assert checkpointer.restore(tmp_path / "x", item=None, args=args) == {"a": 1}


class Tagged(ocp.PyTreeHandler):
    """Takes arguments of its own."""


@register_with_handler(Tagged, for_save=True)
@dataclass
class TaggedSave(ocp.args.PyTreeSave):
    tag: str = ""


@register_with_handler(Tagged, for_save=True)
@dataclass
class OtherSave(CheckpointArgs):
    item: Any
    save_args: Any = None
    ocdbt_target_data_file_size: int | None = None
    custom_metadata: Any = None


@pytest.mark.parametrize("args", [TaggedSave, ocp.args.PyTreeSave, OtherSave])
def test_every_class_that_a_handler_knows_or_extends_is_accepted(args: Any, tmp_path: Path) -> None:
    ocp.Checkpointer(Tagged()).save(tmp_path / "x", args=args(TREE))
    items = ocp.args.Composite(x=args(TREE))
    ocp.Checkpointer(ocp.CompositeHandler(x=Tagged())).save(tmp_path / "y", items)
    registry = ocp.DefaultCheckpointHandlerRegistry()
    registry.add("x", TaggedSave, Tagged())
    composite = ocp.CompositeHandler(handler_registry=registry)
    ocp.Checkpointer(composite).save(tmp_path / "z", items)
    assert ocp.load(tmp_path / "x") == ocp.load(tmp_path / "y") == ocp.load(tmp_path / "z") == TREE


def test_the_first_class_that_is_registered_is_made_of_fields(tmp_path: Path) -> None:
    ocp.Checkpointer(Tagged()).save(tmp_path / "x", TREE, tag="mine")
    assert ocp.load(tmp_path / "x") == TREE


def test_a_registered_item_is_not_saved_with_another_handler(tmp_path: Path) -> None:
    registry = ocp.DefaultCheckpointHandlerRegistry()
    registry.add("x", ocp.args.PyTreeSave, ocp.PyTreeHandler())
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler(handler_registry=registry))
    with pytest.raises(ValueError, match=r"'x' is registered for PyTreeSaveArgs; found JsonSave"):
        checkpointer.save(tmp_path / "x", ocp.args.Composite(x=ocp.args.JsonSave(TREE)))
    items = ocp.args.Composite(x=ocp.args.PyTreeSave(TREE), y=ocp.args.JsonSave(TREE))
    checkpointer.save(tmp_path / "y", items)
    wanted = ocp.args.Composite(x=ocp.args.PyTreeRestore())
    assert checkpointer.restore(tmp_path / "y", wanted).x == TREE


def test_a_class_that_holds_no_arguments_cannot_be_registered() -> None:
    with pytest.raises(TypeError, match=r"Tagged'> is not derived from CheckpointArgs"):
        register_with_handler(PickleHandler, for_save=True)(Tagged)  # type: ignore[type-var]


def test_registering_arguments_leaves_the_classes_as_they_are() -> None:
    class Handler(ocp.JsonHandler):
        pass

    class Save(CheckpointArgs):
        pass

    before = [dict(vars(kind)) for kind in (Handler, Save)]
    register_with_handler(Handler, for_save=True)(Save)
    assert [dict(vars(kind)) for kind in (Handler, Save)] == before


@pytest.mark.parametrize("place", [0, 1, 2, "args"])
def test_arguments_may_be_given_where_orbax_has_them(place: int | str, tmp_path: Path) -> None:
    args, save = ocp.args.JsonSave(TREE), cast(Any, ocp.JsonHandler().save)
    if isinstance(place, int):
        save(tmp_path, *[None] * place, args)
    else:
        save(tmp_path, args=args)
    assert ocp.JsonHandler().restore(tmp_path) == TREE


def test_save_args_of_an_item_that_has_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="save_args"):
        ocp.JsonHandler().save(tmp_path, TREE, ocp.SaveArgs())


def test_an_item_that_is_not_in_item_names_is_refused(tmp_path: Path) -> None:
    items = ocp.args.Composite(sate=ocp.args.StandardSave(TREE))
    expected = r"'sate' is not among .*\['other', 'state'\]; did you mean state\?"
    with pytest.raises(ValueError, match=expected):
        ocp.Checkpointer(ocp.CompositeHandler("state", "other")).save(tmp_path / "x", items)
    for names in (
        {"item_names": ("state", "other")},
        {"item_handlers": {"state": ocp.StandardHandler(), "other": None}},
    ):
        with (
            ocp.CheckpointManager(tmp_path / "run", **names) as manager,  # type: ignore[arg-type]
            pytest.raises(ValueError, match=expected),
        ):
            manager.save(1, args=items)
    assert not (tmp_path / "x").exists()


def test_item_names_beside_one_handler_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"item_names=\['a', 'b'\] is given with one handler"):
        ocp.CheckpointManager(tmp_path, item_names=["a", "b"], item_handlers=ocp.JsonHandler())


def test_a_registry_beside_items_is_refused(tmp_path: Path) -> None:
    registry = ocp.DefaultCheckpointHandlerRegistry()
    with pytest.raises(ValueError, match=r"Items \(a, b\) are given with a handler_registry"):
        ocp.CompositeHandler("a", handler_registry=registry, b=ocp.JsonHandler())
    with pytest.raises(ValueError, match="Both handler_registry and item_names are given"):
        ocp.CheckpointManager(tmp_path, item_names=["a"], handler_registry=registry)
    with pytest.raises(ValueError, match="Both handler_registry and item_handlers are given"):
        ocp.CheckpointManager(
            tmp_path, item_handlers={"a": ocp.JsonHandler()}, handler_registry=registry
        )


@pytest.mark.parametrize("kind", [KeyError, FileNotFoundError, CheckpointNotFoundError])
def test_a_missing_item_is_an_error_of_either_kind(kind: Any, tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler())
    checkpointer.save(tmp_path / "x", ocp.args.Composite(a=ocp.args.JsonSave(1)))
    with pytest.raises(kind, match=r"^No item 'b' at "):
        checkpointer.restore(tmp_path / "x", ocp.args.Composite(b=ocp.args.JsonRestore()))


def test_arguments_of_a_restore_are_refused_by_a_save(tmp_path: Path) -> None:
    handler = ocp.CompositeHandler(x=ocp.StandardHandler())
    items = ocp.args.Composite(x=ocp.args.StandardRestore(np.zeros(2)))
    with pytest.raises(ValueError, match=r"takes StandardSaveArgs.*found .*StandardRestoreArgs"):
        ocp.Checkpointer(handler).save(tmp_path / "x", items)
