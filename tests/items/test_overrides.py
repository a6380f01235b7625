"""Subclasses of item handlers that override methods, and handlers that wrap others."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.items.array import ArrayCheckpointHandler
from orbit_ckpt._src.items.proto import ProtoHandler, ProtoRestoreArgs, ProtoSaveArgs
from orbit_ckpt._src.items.random_key import JaxRandomKeyHandler, NumpyRandomKeyHandler
from orbit_ckpt._src.items.stateful import StatefulHandler
from orbit_ckpt.errors import CorruptionError

TREE = {"a": 1, "secret": 2}
KEPT = {"a": 1}


def kept(tree: Any) -> Any:
    return {key: value for key, value in tree.items() if key != "secret"}


def filtered(args: Any) -> Any:
    return type(args)(kept(args.item))


class SaveFilter:
    """Drops the secret in `save`."""

    def save(self, directory: Any, **kwargs: Any) -> None:
        super().save(directory, args=filtered(kwargs["args"]))  # type: ignore[misc]


class AsyncFilter:
    """Drops the secret in `async_save`."""

    async def async_save(self, directory: Any, **kwargs: Any) -> Any:
        return await super().async_save(directory, args=filtered(kwargs["args"]))  # type: ignore[misc]


class StageFilter:
    """Drops the secret in `stage`."""

    async def stage(self, directory: Path, args: Any, *, copy: bool) -> Any:
        return await super().stage(directory, filtered(args), copy=copy)  # type: ignore[misc]


FILTERS = pytest.mark.parametrize("override", [SaveFilter, AsyncFilter, StageFilter])
TREES = pytest.mark.parametrize(
    ("base", "save"),
    [
        (ocp.PyTreeHandler, ocp.args.PyTreeSave),
        (ocp.StandardHandler, ocp.args.StandardSave),
        (ocp.JsonHandler, ocp.args.JsonSave),
    ],
)


def make(override: type, base: type) -> Any:
    return type("Filter", (override, base), {})()


def with_checkpointer(handler: Any, path: Path, args: Any) -> Any:
    checkpointer = ocp.Checkpointer(handler)
    checkpointer.save(path, args=args)
    return checkpointer.restore(path)


def with_async_checkpointer(handler: Any, path: Path, args: Any) -> Any:
    with ocp.AsyncCheckpointer(handler) as checkpointer:
        checkpointer.save(path, args=args)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path)


def with_composite(handler: Any, path: Path, args: Any) -> Any:
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler(x=handler))
    checkpointer.save(path, ocp.args.Composite(x=args))
    return checkpointer.restore(path).x


def with_registry(handler: Any, path: Path, args: Any) -> Any:
    registry = ocp.DefaultCheckpointHandlerRegistry()
    registry.add("x", type(args), handler)
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler(handler_registry=registry))
    checkpointer.save(path, ocp.args.Composite(x=args))
    return checkpointer.restore(path).x


def with_manager(handler: Any, path: Path, args: Any) -> Any:
    with ocp.CheckpointManager(path, item_handlers=handler) as manager:
        manager.save(3, args=args)
        manager.wait_until_finished()
        return manager.restore(3)


def with_manager_at_once(handler: Any, path: Path, args: Any) -> Any:
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
    with ocp.CheckpointManager(path, item_handlers={"x": handler}, options=options) as manager:
        manager.save(3, args=ocp.args.Composite(x=args))
        return manager.restore(3).x


WAYS = pytest.mark.parametrize(
    "way",
    [
        with_checkpointer,
        with_async_checkpointer,
        with_composite,
        with_registry,
        with_manager,
        with_manager_at_once,
    ],
)


@WAYS
@TREES
@FILTERS
def test_an_override_of_a_save_is_called(
    override: type, base: type, save: Any, way: Callable[..., Any], tmp_path: Path
) -> None:
    assert way(make(override, base), tmp_path / "x", save(TREE)) == KEPT
    assert ocp.verify(tmp_path / "x").is_intact


@FILTERS
def test_an_override_is_called_by_save_of_the_handler_itself(
    override: type, tmp_path: Path
) -> None:
    handler = make(override, ocp.PyTreeHandler)
    handler.save(tmp_path, args=ocp.args.PyTreeSave(TREE))
    assert handler.restore(tmp_path) == KEPT
    assert ocp.verify(tmp_path).unchecked == ()


class Doubled:
    """Changes what is saved and what is restored."""

    def save(self, directory: Any, args: Any = None) -> None:
        fields = {**vars(args), "item": self.change(args.item)}
        super().save(directory, args=type(args)(**fields))  # type: ignore[misc]

    def change(self, item: Any) -> Any:
        return item * 2


class DoubledArray(Doubled, ArrayCheckpointHandler):  # pyright: ignore[reportIncompatibleMethodOverride] - as users do
    pass


class DoubledKey(Doubled, JaxRandomKeyHandler):  # pyright: ignore[reportIncompatibleMethodOverride] - as users do
    def change(self, item: Any) -> Any:
        return jax.random.fold_in(item, 1)


class OtherSeed(Doubled, NumpyRandomKeyHandler):  # pyright: ignore[reportIncompatibleMethodOverride] - as users do
    def change(self, item: Any) -> Any:
        return (item[0], item[1], 7, *item[3:])


class OtherState(Doubled, StatefulHandler):  # pyright: ignore[reportIncompatibleMethodOverride] - as users do
    def change(self, item: Any) -> Any:
        return Counter(item.at * 2)


class OtherMessage(Doubled, ProtoHandler):  # pyright: ignore[reportIncompatibleMethodOverride] - as users do
    def change(self, item: Any) -> Any:
        return type(item)(value=item.value * 2)


@dataclass
class Counter:
    at: int

    def get_state(self) -> dict[str, int]:
        return {"at": self.at}

    def set_state(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("kind", ["array", "key", "numpy", "stateful", "proto"])
def test_an_override_of_every_kind_of_handler_is_called(
    kind: str, background: bool, tmp_path: Path
) -> None:
    wrappers_pb2 = pytest.importorskip(
        "google.protobuf.wrappers_pb2", reason="protobuf is an extra"
    )
    state = np.random.RandomState(3).get_state()
    restore: dict[str, Any] = {}
    handler: Any
    args: Any
    if kind == "array":
        handler, args = DoubledArray(), ocp.args.ArraySave(np.arange(3))
        expected: Any = [0, 2, 4]
    elif kind == "key":
        key = jax.random.key(0)
        handler, args = DoubledKey(), ocp.args.JaxRandomKeySave(key)
        expected = jax.random.key_data(jax.random.fold_in(key, 1)).tolist()
    elif kind == "numpy":
        handler, args, expected = OtherSeed(), ocp.args.NumpyRandomKeySave(state), 7  # type: ignore[arg-type]
    elif kind == "stateful":
        handler, args, expected = OtherState(), ocp.args.StatefulSave(Counter(4)), {"at": 8}
    else:
        handler, args = OtherMessage(), ProtoSaveArgs(wrappers_pb2.Int32Value(value=3))
        restore = {"args": ProtoRestoreArgs(wrappers_pb2.Int32Value)}
        expected = 6
    checkpointer = ocp.AsyncCheckpointer(handler) if background else ocp.Checkpointer(handler)
    with checkpointer:
        checkpointer.save(tmp_path / "x", args=args)
        found = checkpointer.restore(tmp_path / "x", **restore)
    if kind == "array":
        found = found.tolist()
    elif kind == "key":
        found = jax.random.key_data(found).tolist()
    elif kind == "numpy":
        found = found[2]
    elif kind == "proto":
        found = found.value
    assert found == expected


@pytest.mark.parametrize("background", [False, True])
def test_an_override_of_a_composites_save_is_called_and_the_items_are_recorded(
    background: bool, tmp_path: Path
) -> None:
    class Items(ocp.CompositeHandler):
        def restore(self, directory: Any, args: Any = None) -> Any:
            found = super().restore(directory, args)
            return {"restored": found}

    class Only(Items):
        def save(self, directory: Any, args: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as users do
            super().save(directory, args=ocp.args.Composite(b=args.b))

    checkpointer = ocp.AsyncCheckpointer(Only()) if background else ocp.Checkpointer(Only())
    with checkpointer:
        items = ocp.args.Composite(a=ocp.args.JsonSave(TREE), b=ocp.args.StandardSave(KEPT))
        checkpointer.save(tmp_path / "x", items)
        assert dict(checkpointer.restore(tmp_path / "x")["restored"]) == {"b": KEPT}
    plain = ocp.Checkpointer(ocp.CompositeHandler())
    assert dict(plain.restore(tmp_path / "x")) == {"b": KEPT}


class Finished(ocp.PyTreeHandler):
    """Adds a file when the tree is complete."""

    def finalize(self, directory: Any) -> None:
        super().finalize(directory)
        assert (directory / "_METADATA").exists()
        (directory / "sums.txt").write_text("all of it")


class SavedAndFinished(SaveFilter, Finished):  # pyright: ignore[reportIncompatibleMethodOverride] - as users do
    pass


@WAYS
@pytest.mark.parametrize("kind", [Finished, SavedAndFinished])
def test_an_override_of_finalize_is_called_and_what_it_writes_is_checked(
    kind: type, way: Callable[..., Any], tmp_path: Path
) -> None:
    way(kind(), tmp_path / "x", ocp.args.PyTreeSave(KEPT))
    (file,) = tmp_path.rglob("sums.txt")
    report = ocp.verify(tmp_path / "x")
    assert report.is_intact
    assert not report.unchecked
    file.write_text("something else")
    assert not ocp.verify(tmp_path / "x").is_intact


def test_data_of_another_save_is_found_although_finalize_adds_a_file(tmp_path: Path) -> None:
    for seed in (1, 2):
        item = {"w": np.random.default_rng(seed).integers(0, 256, 5000).astype(np.uint8)}
        args = ocp.args.PyTreeSave(item)
        ocp.Checkpointer(Finished()).save(tmp_path / str(seed), args=args)
    mine, other = (next((tmp_path / str(seed)).rglob("d/*")) for seed in (1, 2))
    shutil.copyfile(other, mine)
    assert not ocp.verify(tmp_path / "1").is_intact
    with pytest.raises(CorruptionError):
        ocp.load(tmp_path / "1")


class Reversed(ocp.PyTreeHandler):
    """Restores in its own way."""

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        text = (directory / "note").read_text()
        return text, super().restore(directory, *args, **kwargs)

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        super().save(directory, *args, **kwargs)
        (directory / "note").write_text("noted")

    def metadata(self, directory: Any, **_: Any) -> Any:
        return (directory / "note").read_text()


@WAYS
def test_an_override_of_restore_is_called(way: Callable[..., Any], tmp_path: Path) -> None:
    found = way(Reversed(), tmp_path / "x", ocp.args.PyTreeSave(KEPT))
    assert found == ("noted", KEPT)


def test_files_that_an_override_of_restore_reads_are_checked_first(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(Reversed())
    checkpointer.save(tmp_path / "x", args=ocp.args.PyTreeSave(KEPT))
    (tmp_path / "x" / "note").write_text("forged")
    with pytest.raises(CorruptionError, match="note"):
        checkpointer.restore(tmp_path / "x")


def test_an_item_whose_handler_reads_in_its_own_way_is_recorded_as_that_handlers(
    tmp_path: Path,
) -> None:
    items = ocp.args.Composite(x=ocp.args.PyTreeSave(KEPT))
    ocp.Checkpointer(ocp.CompositeHandler(x=Reversed())).save(tmp_path / "x", items)
    plain = ocp.Checkpointer(ocp.CompositeHandler())
    assert plain.restore(tmp_path / "x").x == ("noted", KEPT)
    wanted = ocp.args.Composite(x=ocp.args.PyTreeRestore())
    assert plain.restore(tmp_path / "x", wanted).x == KEPT


def test_an_item_whose_handler_is_gone_is_not_taken_for_a_plain_tree(tmp_path: Path) -> None:
    class Local(Reversed):
        pass

    items = ocp.args.Composite(x=ocp.args.PyTreeSave(KEPT))
    ocp.Checkpointer(ocp.CompositeHandler(x=Local())).save(tmp_path / "x", items)
    with pytest.raises(ValueError, match=r"no item handler .*Local"):
        ocp.Checkpointer(ocp.CompositeHandler()).restore(tmp_path / "x")


def test_an_override_of_metadata_is_called(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(Reversed())
    checkpointer.save(tmp_path / "x", args=ocp.args.PyTreeSave(KEPT))
    assert checkpointer.metadata(tmp_path / "x").item_metadata == "noted"


def test_a_method_that_is_replaced_on_the_object_is_called(tmp_path: Path) -> None:
    handler = ocp.PyTreeHandler()
    called: list[Any] = []

    def save(directory: Any, args: Any) -> None:
        called.append(args)
        ocp.PyTreeHandler.save(handler, directory, args=args)

    handler.save = save  # type: ignore[assignment, method-assign]
    ocp.Checkpointer(handler).save(tmp_path / "x", args=ocp.args.PyTreeSave(KEPT))
    assert len(called) == 1
    assert ocp.load(tmp_path / "x") == KEPT


class Fields(ocp.PyTreeHandler):
    """Takes the tree itself, as handlers did before there were argument classes."""

    def save(self, directory: Any, item: Any, save_args: Any = None) -> None:  # type: ignore[override]
        super().save(directory, kept(item), save_args)

    def restore(self, directory: Any, item: Any = None) -> Any:  # type: ignore[override]
        return {"restored": super().restore(directory, item)}


def test_an_override_of_its_own_signature_is_given_what_the_caller_gives(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(Fields())
    checkpointer.save(tmp_path / "x", TREE)
    assert checkpointer.restore(tmp_path / "x") == {"restored": KEPT}
    assert checkpointer.restore(tmp_path / "x", item={"a": 0}) == {"restored": KEPT}


class Wrapper(ocp.CheckpointHandler):
    """Saves with another handler, as Orbax's users write handlers."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    async def async_save(self, directory: Any, args: Any) -> Any:
        (directory / "inner").mkdir()
        return await self._handler.async_save(directory / "inner", args=args.inner)

    def save(self, directory: Any, args: Any) -> None:  # type: ignore[override]
        (directory / "inner").mkdir()
        self._handler.save(directory / "inner", args=args.inner)

    def restore(self, directory: Any, args: Any = None) -> Any:  # type: ignore[override]
        del args  # restored as it was saved
        return self._handler.restore(directory / "inner")

    def close(self) -> None:
        self._handler.close()

    def finalize(self, directory: Any) -> None:
        self._handler.finalize(directory / "inner")


@ocp.args.register_with_handler(Wrapper, for_save=True, for_restore=True)
@dataclass
class WrapperArgs(ocp.args.CheckpointArgs):
    inner: Any = None


@WAYS
@TREES
def test_a_handler_that_wraps_another_saves_and_restores(
    base: type, save: Any, way: Callable[..., Any], tmp_path: Path
) -> None:
    assert way(Wrapper(base()), tmp_path / "x", WrapperArgs(save(TREE))) == TREE
    assert ocp.verify(tmp_path / "x").is_intact


def test_what_is_given_to_async_save_may_be_changed_once_it_returns(tmp_path: Path) -> None:
    values = np.arange(1000)

    async def save() -> None:
        handler = ocp.PyTreeHandler()
        futures = await handler.async_save(tmp_path, {"w": values})
        values[:] = -1
        for future in futures:
            future.result()

    asyncio.run(save())
    np.testing.assert_array_equal(ocp.load(tmp_path)["w"], np.arange(1000))
    assert ocp.verify(tmp_path).unchecked == ()


@pytest.mark.parametrize("form", ["args", "item", "named"])
@pytest.mark.parametrize(
    ("handler", "save", "value"),
    [
        (ocp.PyTreeHandler, ocp.args.PyTreeSave, TREE),
        (ocp.StandardHandler, ocp.args.StandardSave, TREE),
        (ocp.JsonHandler, ocp.args.JsonSave, TREE),
        (ArrayCheckpointHandler, ocp.args.ArraySave, 3),
        (StatefulHandler, ocp.args.StatefulSave, Counter(3)),
    ],
)
def test_async_save_of_a_handler_alone_returns_futures(
    handler: Any, save: Any, value: Any, form: str, tmp_path: Path
) -> None:
    async def run() -> Any:
        if form == "args":
            return await handler().async_save(tmp_path, args=save(value))
        if form == "item":
            return await handler().async_save(tmp_path, value)
        return await handler().async_save(tmp_path, item=value)

    for future in asyncio.run(run()):
        future.result()
    expected = value.get_state() if isinstance(value, Counter) else value
    assert handler().restore(tmp_path) == expected


def test_an_error_of_a_part_fails_the_save_and_leaves_nothing(tmp_path: Path) -> None:
    class Broken(ocp.PyTreeHandler):
        def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
            super().save(directory, *args, **kwargs)
            raise RuntimeError("not this one")

    with pytest.raises(RuntimeError, match="not this one"):
        ocp.Checkpointer(Broken()).save(tmp_path / "x", args=ocp.args.PyTreeSave(KEPT))
    assert list(tmp_path.iterdir()) == []


def test_what_an_override_ignores_of_the_futures_is_written_all_the_same(tmp_path: Path) -> None:
    class Forgetful(ocp.PyTreeHandler):
        async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
            await super().async_save(directory, *args, **kwargs)

    found = with_async_checkpointer(Forgetful(), tmp_path / "x", ocp.args.PyTreeSave(KEPT))
    assert found == KEPT


def test_an_override_that_waits_for_the_futures_itself_saves(tmp_path: Path) -> None:
    class Waiting(ocp.PyTreeHandler):
        async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
            for future in await super().async_save(directory, *args, **kwargs):
                future.result()
            return []

    args = ocp.args.PyTreeSave({"w": jnp.arange(3)})
    with_async_checkpointer(Waiting(), tmp_path / "x", args)
    assert ocp.verify(tmp_path / "x").chunks == 1


def test_an_override_may_run_an_event_loop_of_its_own(tmp_path: Path) -> None:
    class Looping(ocp.PyTreeHandler):
        def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
            async def both() -> None:
                for future in await self.async_save(directory, *args, **kwargs):
                    future.result()

            asyncio.run(both())

    found = with_checkpointer(Looping(), tmp_path / "x", ocp.args.PyTreeSave(KEPT))
    assert found == KEPT
