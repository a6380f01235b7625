"""Named checkpointables, their handlers and the files they write, next to Orbax."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest
from google.protobuf.wrappers_pb2 import StringValue

import orbit_ckpt
import orbit_ckpt.v1 as ours
from orbit_ckpt.errors import CorruptionError
from tests.v1.both import LEAKS, LIBRARIES, plain, run_both

pytestmark = [pytest.mark.interop, LEAKS]

BOTH_WAYS = pytest.mark.parametrize(("writer", "reader"), [("ours", "orbax"), ("orbax", "ours")])


class Point:
    def __init__(self, x: int = 0) -> None:
        self.x = x


class PointHandler:
    async def save(self, directory: Any, checkpointable: Point) -> Awaitable[None]:
        async def write() -> None:
            path = await directory.await_creation()
            (path / "point.txt").write_text(str(checkpointable.x))

        return write()

    async def load(self, directory: Any, _abstract: Any = None) -> Awaitable[Point]:
        async def read() -> Point:
            return Point(int((directory / "point.txt").read_text()))

        return read()

    async def metadata(self, _directory: Any) -> type[Point]:
        return Point

    def is_handleable(self, checkpointable: object) -> bool:
        return isinstance(checkpointable, Point)

    def is_abstract_handleable(self, abstract: object) -> bool:
        return abstract is Point or isinstance(abstract, Point)


class Counter:
    """A stateful object."""

    def __init__(self, count: int) -> None:
        self.count = count

    async def save(self, directory: Any) -> Awaitable[None]:
        count = self.count

        async def write() -> None:
            path = await directory.await_creation()
            (path / "count").write_text(str(count))

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        async def read() -> None:
            self.count = int((directory / "count").read_text())

        return read()


def context_with(lib: Any, *handlers: type, **named: type) -> Any:
    registry = lib.handlers.local_registry()
    for handler in handlers:
        registry.add(handler)
    for name, handler in named.items():
        registry.add(handler, checkpointable_name=name)
    context = lib.Context()
    context.checkpointables.registry = registry
    return context


def items() -> dict[str, Any]:
    return {
        "point": Point(3),
        "counter": Counter(5),
        "state": {"w": jnp.arange(3)},
        "proto": StringValue(value="hi"),
        "text": {"a": [1, "x"], "b": None},
    }


def save_all(lib: Any, path: Path) -> None:
    with context_with(lib, PointHandler, text=lib.handlers.JsonHandler):
        lib.save_checkpointables(path, items(), custom_metadata={"k": 1})


def load_all(lib: Any, path: Path) -> object:
    counter = Counter(0)
    wanted = dict.fromkeys(items()) | {"counter": counter, "proto": StringValue}
    with context_with(lib, PointHandler, text=lib.handlers.JsonHandler):
        found = lib.load_checkpointables(path, wanted)
    assert found["counter"] is counter
    return {
        **found,
        "point": found["point"].x,
        "counter": counter.count,
        "proto": found["proto"].value,
    }


@BOTH_WAYS
def test_checkpointables_pass_between_the_libraries(
    writer: str, reader: str, tmp_path: Path
) -> None:
    save_all(LIBRARIES[writer], tmp_path / "c")
    found = load_all(LIBRARIES[reader], tmp_path / "c")
    assert plain(found) == plain(load_all(LIBRARIES[writer], tmp_path / "c"))
    assert LIBRARIES[reader].load(tmp_path / "c")["w"].tolist() == [0, 1, 2]


def test_files_and_recorded_handlers_are_those_of_orbax(tmp_path: Path) -> None:
    recorded: list[dict[str, str]] = []
    for name, lib in LIBRARIES.items():
        save_all(lib, tmp_path / name)
        document = json.loads((tmp_path / name / "_CHECKPOINT_METADATA").read_text())
        recorded.append(document["item_handlers"])
        assert (tmp_path / name / "orbax.checkpoint").is_file()
    assert recorded[0] == recorded[1]
    for file in ("text/data.json", "proto/proto.pbtxt", "counter/count", "point/point.txt"):
        mine, theirs = ((tmp_path / name / file).read_text() for name in LIBRARIES)
        assert mine == theirs or json.loads(mine) == json.loads(theirs)


CASES: dict[str, Callable[[Any, Path], object]] = {
    "no handler": lambda lib, c: lib.save_checkpointables(c.with_name("d"), {"p": Point()}),
    "none": lambda lib, c: lib.save_checkpointables(c.with_name("d"), {"p": None}),
    "no names": lambda lib, c: lib.save_checkpointables(c.with_name("d"), {}),
    "a list": lambda lib, c: lib.save_checkpointables(c.with_name("d"), [1]),
    "a reserved name": lambda lib, c: lib.save_checkpointables(c.with_name("d"), {"metrics": 1}),
    "load a list": lambda lib, c: lib.load_checkpointables(c, ["state"]),
    "load another name": lambda lib, c: lib.load_checkpointables(c, {"x": None}),
    "load a reserved name": lambda lib, c: lib.load_checkpointables(c, {"metrics": None}),
    "load a stateful object without one": lambda lib, c: lib.load_checkpointables(c),
    "load a message without its class": lambda lib, c: lib.load_checkpointables(c, {"proto": None}),
    "load without its handler": lambda lib, c: lib.load_checkpointables(c, {"point": None}),
    "load what is no state": lambda lib, c: lib.load(c, checkpointable_name="counter"),
    "load JSON with the handlers of all": lambda lib, c: lib.load_checkpointables(
        c, {"text": None}
    ),
    "part": lambda lib, c: lib.load_checkpointables(c, {"state": {"w": jnp.zeros(3, "int32")}}),
    "register an instance": lambda lib, _: lib.handlers.local_registry().add(PointHandler()),
    "register twice": lambda lib, _: (
        lib.handlers.local_registry().add(PointHandler).add(PointHandler)
    ),
    "register in a new context": lambda lib, _: lib.Context().checkpointables.registry.add(
        PointHandler
    ),
    "an unknown name": lambda lib, _: lib.handlers.local_registry().get("x"),
    "known names": lambda lib, _: (
        lib.handlers.local_registry().has("state"),
        [
            (kind.__name__, name) for kind, name in lib.handlers.local_registry().get_all_entries()
        ].__repr__(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        save_all(lib, at / "c")
        return CASES[case](lib, at / "c")

    mine, theirs = run_both(steps, tmp_path)
    if case == "load another name":
        mine = "raises KeyError"  # also a FileNotFoundError
        with pytest.raises(KeyError):
            ours.load_checkpointables(tmp_path / "ours" / "c", {"x": None})
    elif case == "load a message without its class":
        assert mine == "raises ValueError"
        return
    assert mine == theirs


def test_metadata_of_checkpointables(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        save_all(lib, at / "c")
        with context_with(lib, PointHandler, text=lib.handlers.JsonHandler):
            found = lib.checkpointables_metadata(at / "c")
        tree = found.metadata.pop("state")
        return str((found.metadata.pop("point"), sorted(found.metadata.items()), tree["w"].shape))

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


def test_handler_that_uses_a_built_in_one(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        class AsTree(PointHandler):
            async def save(self, directory: Any, checkpointable: Point) -> Awaitable[None]:
                return await lib.handlers.PyTreeHandler().save(directory, {"x": checkpointable.x})

            async def load(self, directory: Any, _abstract: Any = None) -> Awaitable[Point]:
                loading = await lib.handlers.PyTreeHandler().load(directory)

                async def read() -> Point:
                    return Point((await loading)["x"])

                return read()

        with context_with(lib, AsTree):
            lib.save_checkpointables(at / "c", {"p": Point(7)})
            loaded = lib.load_checkpointables(at / "c")["p"].x
        return loaded, lib.load(at / "c")

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs == (("int", 7), {"x": ("int", 7)})
    assert orbit_ckpt.verify(tmp_path / "ours" / "c").is_intact


def test_failing_handler_leaves_nothing(tmp_path: Path) -> None:
    class Failing(PointHandler):
        async def save(self, directory: Any, checkpointable: Point) -> Awaitable[None]:
            del directory, checkpointable

            async def write() -> None:
                raise ArithmeticError("no")

            return write()

    with context_with(ours, Failing), pytest.raises(ArithmeticError, match="no"):
        ours.save_checkpointables(tmp_path / "c", {"p": Point(), "state": {"a": 1}})
    assert list(tmp_path.iterdir()) == []


def test_damaged_file_of_a_handler_is_found(tmp_path: Path) -> None:
    save_all(ours, tmp_path / "c")
    (tmp_path / "c" / "point" / "point.txt").write_text("4")
    with context_with(ours, PointHandler), pytest.raises(CorruptionError, match=r"point\.txt"):
        ours.load_checkpointables(tmp_path / "c", {"point": None})


def test_v0_face_restores_items_of_v1(tmp_path: Path) -> None:
    save_all(ours, tmp_path / "c")
    args = orbit_ckpt.args
    found = orbit_ckpt.Checkpointer(orbit_ckpt.CompositeCheckpointHandler()).restore(
        tmp_path / "c",
        args.Composite(
            state=args.PyTreeRestore(),
            text=args.JsonRestore(),
            proto=args.ProtoRestore(StringValue),
        ),
    )
    assert found["state"]["w"].tolist() == [0, 1, 2]
    assert found["text"] == {"a": [1, "x"], "b": None}
    assert found["proto"].value == "hi"


def test_v1_loads_items_of_v0(tmp_path: Path) -> None:
    args = orbit_ckpt.args
    orbit_ckpt.Checkpointer(orbit_ckpt.CompositeCheckpointHandler()).save(
        tmp_path / "c",
        args.Composite(state=args.StandardSave({"a": 1}), text=args.JsonSave({"b": 2})),
    )
    assert ours.load_checkpointables(tmp_path / "c") == {"state": {"a": 1}, "text": {"b": 2}}


def test_secondary_typestrs_find_a_renamed_handler(tmp_path: Path) -> None:
    with context_with(ours, PointHandler):
        ours.save_checkpointables(tmp_path / "c", {"p": Point(2)})

    class Renamed(PointHandler):
        pass

    name = f"{PointHandler.__module__}.{PointHandler.__qualname__}"
    renamed: Any = Renamed
    context = ours.Context()
    context.checkpointables.registry = ours.handlers.local_registry().add(
        renamed, secondary_typestrs=[name]
    )
    with context:
        assert ours.load_checkpointables(tmp_path / "c")["p"].x == 2


@pytest.mark.parametrize("library", ["ours", "orbax"])
def test_random_keys_of_the_v0_api_come_back_as_keys(tmp_path: Path, library: str) -> None:
    v0: Any = orbit_ckpt if library == "ours" else orbax.checkpoint
    key, state = jax.random.key(3), np.random.get_state()
    items = {"key": v0.args.JaxRandomKeySave(key), "numpy": v0.args.NumpyRandomKeySave(state)}
    with v0.Checkpointer(v0.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "c", args=v0.args.Composite(**items))
    found = ours.load_checkpointables(tmp_path / "c")
    assert found["key"].dtype == key.dtype
    assert jax.random.key_data(found["key"]).tolist() == jax.random.key_data(key).tolist()
    np.random.set_state(found["numpy"])
    assert ours.load_checkpointables(tmp_path / "c", {"key": None})["key"] == key
    assert ours.checkpointables_metadata(tmp_path / "c").metadata == {"key": None, "numpy": None}


def test_items_of_handlers_written_for_the_v0_api_are_loaded_and_checked(tmp_path: Path) -> None:
    class WordsHandler(orbit_ckpt.CheckpointHandler):
        def save(self, directory: Path, args: Any) -> None:
            (directory / "words").write_text(args.item)

        def restore(self, directory: Path, _args: Any = None) -> str:
            return (directory / "words").read_text()

    @orbit_ckpt.args.register_with_handler(WordsHandler, for_save=True, for_restore=True)
    @dataclasses.dataclass
    class WordsArgs(orbit_ckpt.args.CheckpointArgs):
        item: str | None = None

    orbit_ckpt.Checkpointer(orbit_ckpt.CompositeCheckpointHandler()).save(
        tmp_path / "c", args=orbit_ckpt.args.Composite(words=WordsArgs("to be"))
    )
    assert ours.load_checkpointables(tmp_path / "c") == {"words": "to be"}
    (tmp_path / "c" / "words" / "words").write_text("to bet")
    with pytest.raises(CorruptionError, match="words"):
        ours.load_checkpointables(tmp_path / "c")


def test_a_handler_that_does_not_find_its_files_is_named_as_the_wrong_one(tmp_path: Path) -> None:
    ours.save_checkpointables(tmp_path / "c", {"notes": {"a": jnp.arange(2)}})
    registry = ours.handlers.local_registry()
    registry.add(ours.handlers.JsonHandler, checkpointable_name="notes")
    context = ours.Context()
    context.checkpointables.registry = registry
    with context, pytest.raises(KeyError, match="notes: its handler does not find"):
        ours.load_checkpointables(tmp_path / "c")


@BOTH_WAYS
def test_a_checkpoint_whose_own_metadata_is_missing_is_refused(
    tmp_path: Path, writer: str, reader: str
) -> None:
    LIBRARIES[writer].save_checkpointables(tmp_path / "c", {"state": {"a": jnp.arange(2)}})
    for file in ("_CHECKPOINT_METADATA", "orbit_manifest.json", "commit_success.txt"):
        (tmp_path / "c" / file).unlink(missing_ok=True)
    for call in ("load", "load_checkpointables", "metadata", "checkpointables_metadata"):
        with pytest.raises(ValueError, match="c"):  # InvalidLayoutError
            getattr(LIBRARIES[reader], call)(tmp_path / "c")


@BOTH_WAYS
def test_what_no_handler_describes_has_no_abstract_form(
    tmp_path: Path, writer: str, reader: str
) -> None:
    v0: Any = {"ours": orbit_ckpt, "orbax": orbax.checkpoint}[writer]
    items = {"state": v0.args.PyTreeSave({"a": 1}), "notes": v0.args.JsonSave({"b": 2})}
    with v0.Checkpointer(v0.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "c", args=v0.args.Composite(**items))
    for file in ("_CHECKPOINT_METADATA", "orbit_manifest.json", "commit_success.txt"):
        (tmp_path / "c" / file).unlink(missing_ok=True)  # what older releases did not write
    found = LIBRARIES[reader].checkpointables_metadata(tmp_path / "c").metadata
    assert sorted(found) == ["notes", "state"]
    assert found["notes"] is None
