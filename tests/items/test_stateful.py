"""Objects with a state of their own as items, one state per process."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import (
    BackgroundSaveError,
    CheckpointNotFoundError,
    CorruptionError,
    FormatError,
    ItemError,
    ProcessCountError,
    UnsupportedLeafError,
)
from tests.support import assert_same_tree, flip_every_bit


class Stream:
    """Has a state in the way of data iterators."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class Loader:
    """Has a state in the way of torch."""

    def __init__(self) -> None:
        self.read = {"epoch": 1, "seen": np.zeros(3, np.int64)}

    def get_state(self) -> Any:
        raise AssertionError("half of another pair of methods")

    def state_dict(self) -> Any:
        return self.read

    def load_state_dict(self, state: Any) -> None:
        self.read = state


JSON_STATES = [
    {"next_index": 3, "exhausted": False, "inner": [None, {"ä": "\ud800"}]},
    {"key": 2**127 + 1, "nan": math.inf, "zero": -0.0},
    "text",
    7,
    [],
    None,
]
BYTE_STATES = [
    b'{\n  "version": 2\n}',
    b"\x00\xff",
    b"",
    b"NaN",
    "ä".encode("latin-1"),
    b"\xef\xbb",
]
TREE_STATES = [
    {"seen": np.arange(3), "rng": jnp.ones(2), "at": 3, "name": "x"},
    {0: "int key", 1: (1, [2.5])},
    (1, 2),
    np.int64(3),
    {"bytes": b"\x00", "big": np.zeros((100, 100))},
]


@pytest.mark.parametrize("state", [*JSON_STATES, *BYTE_STATES, *TREE_STATES], ids=str)
def test_a_state_comes_back_as_it_was(state: object, tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.StatefulHandler())
    checkpointer.save(tmp_path / "x", args=ocp.args.StatefulSave(Stream(state)))
    stream = Stream()
    assert checkpointer.restore(tmp_path / "x", ocp.args.StatefulRestore(stream)) is stream
    assert_same_tree(stream.state, state)
    assert_same_tree(checkpointer.restore(tmp_path / "x"), state)


def test_what_can_be_changed_in_a_state_comes_back_as_its_plain_form(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.StatefulHandler())
    for name, state, plain in (
        ("a", OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        ("b", bytearray(b"\x01"), b"\x01"),
        ("c", memoryview(b"\x01"), b"\x01"),
    ):
        checkpointer.save(tmp_path / name, Stream(state))
        found = checkpointer.restore(tmp_path / name)
        assert (type(found), found) == (type(plain), plain)
        assert list(found) == list(plain)


def test_objects_in_the_way_of_torch_are_restored(tmp_path: Path) -> None:
    loader = Loader()
    loader.read = {"epoch": 4, "seen": np.arange(3)}
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler())
    checkpointer.save(tmp_path / "x", ocp.args.Composite(ds=ocp.args.StatefulSave(loader)))
    wanted = ocp.args.Composite(ds=ocp.args.StatefulRestore(Loader()))
    assert_same_tree(checkpointer.restore(tmp_path / "x", wanted).ds.read, loader.read)


@pytest.mark.parametrize(
    ("state", "change"),
    [
        ({"at": [1]}, lambda s: s["at"].append(2)),
        (bytearray(b"\x01"), lambda s: s.append(2)),
        ({"seen": np.zeros(3)}, lambda s: s["seen"].fill(9)),
        ({"a": [np.zeros(3)]}, lambda s: s["a"].clear()),
    ],
    ids=["json", "bytes", "array", "list"],
)
def test_what_an_object_does_after_the_call_is_not_saved(
    state: Any, change: Callable[[Any], object], tmp_path: Path
) -> None:
    before = repr(state)
    stream = Stream(state)
    with ocp.AsyncCheckpointer(ocp.CompositeHandler()) as checkpointer:
        checkpointer.save(tmp_path / "x", ocp.args.Composite(ds=ocp.args.StatefulSave(stream)))
        change(stream.state)
    found = ocp.Checkpointer(ocp.CompositeHandler()).restore(tmp_path / "x").ds
    assert repr(type(state)(found)) == before


def test_the_tree_beside_a_state_is_found(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler())
    for name, state in (("a", {"seen": np.zeros(3)}), ("b", {"at": 1})):
        items = {
            "ds": ocp.args.StatefulSave(Stream(state)),
            "params": ocp.args.PyTreeSave({"w": 1}),
        }
        checkpointer.save(tmp_path / name, ocp.args.Composite(**items))
        assert ocp.load(tmp_path / name) == {"w": 1}


# several processes


def save_as(path: Path, states: Sequence[object]) -> None:
    """Save as several processes do, each its own state."""
    path.mkdir()
    for index, state in enumerate(states):
        handler = ocp.StatefulHandler(process_index=index, process_count=len(states))
        handler.save(path, Stream(state))


@pytest.mark.parametrize(
    "make", [lambda i: {"at": i}, lambda i: b"%d" % i, np.int64], ids=["json", "bytes", "tree"]
)
def test_each_process_restores_its_own_state(make: Callable[[int], Any], tmp_path: Path) -> None:
    save_as(tmp_path / "ds", [make(i) for i in range(12)])
    for index in (0, 1, 10, 11):
        handler = ocp.StatefulHandler(process_index=index, process_count=12)
        assert handler.restore(tmp_path / "ds", Stream()).state == make(index)


@pytest.mark.parametrize("now", [1, 3])
def test_another_number_of_processes_is_an_error_that_says_what_to_do(
    now: int, tmp_path: Path
) -> None:
    save_as(tmp_path / "ds", [{"at": 1}, {"at": 2}])
    stream = Stream("untouched")
    expected = (
        rf"ds: saved by 2 processes.* now there are {now}\. Restore with 2, or give .*resplit"
    )
    with pytest.raises(ProcessCountError, match=expected) as caught:
        ocp.StatefulHandler(process_index=0, process_count=now).restore(tmp_path / "ds", stream)
    assert (caught.value.saved, caught.value.current) == (2, now)
    assert stream.state == "untouched"


def test_a_hook_makes_states_for_another_number_of_processes(tmp_path: Path) -> None:
    states = [{"at": 10}, np.int64(20), b"\xff", b"30"]
    save_as(tmp_path / "ds", states)

    def resplit(found: Sequence[Any], index: int, count: int) -> Any:
        assert_same_tree(list(found), states)
        return {"found": len(found), "index": index, "count": count}

    for index in range(3):
        handler = ocp.StatefulHandler(process_index=index, process_count=3)
        args = ocp.args.StatefulRestore(Stream(), resplit=resplit)
        state = handler.restore(tmp_path / "ds", args=args).state
        assert state == {"found": 4, "index": index, "count": 3}


def test_the_hook_is_not_asked_if_the_number_is_the_same(tmp_path: Path) -> None:
    save_as(tmp_path / "ds", ["a", "b"])
    handler = ocp.StatefulHandler(process_index=1, process_count=2)
    args = ocp.args.StatefulRestore(Stream(), resplit=lambda *_: pytest.fail("asked"))
    assert handler.restore(tmp_path / "ds", args=args).state == "b"


def test_an_error_of_the_hook_names_the_item(tmp_path: Path) -> None:
    save_as(tmp_path / "ds", ["a", "b"])

    def split_evenly(states: Sequence[Any], _index: int, _count: int) -> Any:
        raise ZeroDivisionError(f"{len(states)} into none")

    args = ocp.args.StatefulRestore(Stream(), resplit=split_evenly)
    with pytest.raises(
        ItemError, match=r"ds: split_evenly\(\) raised ZeroDivisionError: 2 into no"
    ):
        ocp.StatefulHandler().restore(tmp_path / "ds", args=args)


@pytest.mark.parametrize("given", [{"process_index": 0}, {"process_count": 1}])
def test_a_process_is_given_as_a_whole(given: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="process_index and process_count together"):
        ocp.StatefulHandler(**given)
    with pytest.raises(ValueError, match="no process 2 among 2"):
        ocp.StatefulHandler(process_index=2, process_count=2)


# what can go wrong


@pytest.mark.parametrize("state", [{"at": 3}, b"\x00\x01", b'{"at": 3}', {"seen": np.int8(1)}])
def test_every_flipped_bit_and_every_missing_file_is_noticed(state: Any, tmp_path: Path) -> None:
    path = tmp_path / "x"
    checkpointer = ocp.Checkpointer(ocp.StatefulHandler())
    checkpointer.save(path, Stream(state))
    for file in filter(Path.is_file, path.rglob("process_*")):
        for _ in flip_every_bit(file):
            with pytest.raises(CorruptionError, match=f"{file.name} is damaged"):
                checkpointer.restore(path, Stream())
    for file in filter(Path.is_file, [*path.glob("process_*"), *path.glob("process_*/*")]):
        data = file.read_bytes()
        file.unlink()
        with pytest.raises(CorruptionError, match="it is missing"):
            checkpointer.restore(path, Stream())
        file.write_bytes(data)


def test_states_that_are_all_lost_are_damage_and_not_just_not_there(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.StatefulHandler())
    checkpointer.save(tmp_path / "x", Stream(1))
    for file in (tmp_path / "x").glob("process_*"):
        file.unlink()
    with pytest.raises(CorruptionError, match="it is missing"):
        checkpointer.restore(tmp_path / "x", Stream())


def test_an_error_of_the_object_names_the_item_and_nothing_is_left(tmp_path: Path) -> None:
    class Broken(Stream):
        def get_state(self) -> Any:
            raise RuntimeError("the pipeline is not stateless")

        def set_state(self, state: Any) -> None:
            raise KeyError(state)

    checkpointer = ocp.Checkpointer(ocp.CompositeHandler())
    items = {"train_ds": ocp.args.StatefulSave(Broken()), "step": ocp.args.JsonSave(1)}
    expected = r"train_ds: get_state\(\) of .*Broken raised RuntimeError: the pipeline is not state"
    with pytest.raises(ItemError, match=expected) as caught:
        checkpointer.save(tmp_path / "x", ocp.args.Composite(**items))
    assert caught.value.item == "train_ds"
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not list(tmp_path.iterdir())
    background = ocp.AsyncCheckpointer(ocp.CompositeHandler())
    with pytest.raises(ItemError, match=expected):
        background.save(tmp_path / "x", ocp.args.Composite(**items))
    background.close()
    assert not list(tmp_path.iterdir())
    items["train_ds"] = ocp.args.StatefulSave(Stream("s"))
    checkpointer.save(tmp_path / "x", ocp.args.Composite(**items))
    wanted = ocp.args.Composite(train_ds=ocp.args.StatefulRestore(Broken()))
    with pytest.raises(
        ItemError, match=r"train_ds: set_state\(\) of .*Broken raised KeyError: 's'"
    ):
        checkpointer.restore(tmp_path / "x", wanted)


@pytest.mark.parametrize(
    "item", [[1], None, Stream, iter([1])], ids=["list", "none", "class", "iterator"]
)
def test_what_has_no_state_is_refused(item: object, tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler())
    expected = (
        r"ds: expected an object with state_dict\(\) and load_state_dict\(state\), or get_sta"
    )
    with pytest.raises(TypeError, match=expected):
        checkpointer.save(tmp_path / "x", ocp.args.Composite(ds=ocp.args.StatefulSave(item)))
    assert not list(tmp_path.iterdir())


def test_a_state_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler())
    items = ocp.args.Composite(ds=ocp.args.StatefulSave(Stream({"at": 1, "lock": object()})))
    with pytest.raises(UnsupportedLeafError, match="lock: no type handler accepts") as caught:
        checkpointer.save(tmp_path / "x", items)
    assert any("ds: this is what get_state() of" in note for note in caught.value.__notes__)
    endless: list[Any] = []
    endless.append(endless)
    items = ocp.args.Composite(ds=ocp.args.StatefulSave(Stream(endless)))
    with pytest.raises(TypeError, match=r"ds: the state is nested too deep .*or holds itself"):
        checkpointer.save(tmp_path / "x", items)
    assert not list(tmp_path.iterdir())


def test_a_place_without_states_is_described(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with pytest.raises(CheckpointNotFoundError, match=r"No state of an object at .*with other"):
        ocp.StatefulHandler().restore(tmp_path, Stream())
    (tmp_path / "process_0-of-2.json").write_text("1")
    handler = ocp.StatefulHandler(process_index=1, process_count=2)
    with pytest.raises(CheckpointNotFoundError, match=r"no state of process 1 of 2: no file 'proc"):
        handler.restore(tmp_path, Stream())
    (tmp_path / "process_0-of-3.json").write_text("1")
    with pytest.raises(FormatError, match=r"found those of \[2, 3\]"):
        handler.restore(tmp_path, Stream())


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("[]", r"of-1\.kind: expected `object`"),
        ('{"format_version": 2}', "format version 2; this version of orbit_ckpt reads up to 1"),
        ('{"format_version": 1, "kind": "pickle", "type": "x"}', r"invalid enum value 'pickle'"),
    ],
)
def test_a_record_that_is_not_understood_is_named(
    record: str, message: str, tmp_path: Path
) -> None:
    handler = ocp.StatefulHandler()
    handler.save(tmp_path, Stream(1))
    (tmp_path / "orbit_manifest.json").unlink()
    (tmp_path / "process_0-of-1.kind").write_text(record)
    with pytest.raises(FormatError, match=message):
        handler.restore(tmp_path, Stream())


def test_a_state_whose_writing_fails_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    checkpointer = ocp.AsyncCheckpointer(ocp.StatefulHandler())
    monkeypatch.setattr("orbit_ckpt._src.items.stateful.write_file", full)
    checkpointer.save(tmp_path / "x", Stream(1))
    with pytest.raises(BackgroundSaveError, match="No space left"):
        checkpointer.wait_until_finished()
    assert not list(tmp_path.iterdir())


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore")
def test_orbax_restores_the_other_items(tmp_path: Path) -> None:
    import orbax.checkpoint as orbax  # noqa: PLC0415 - optional
    from orbax.checkpoint.experimental import v1  # noqa: PLC0415 - optional

    params = {"w": np.arange(3)}
    items = {"ds": ocp.args.StatefulSave(Stream(1)), "p": ocp.args.StandardSave(params)}
    ocp.Checkpointer(ocp.CompositeHandler()).save(tmp_path / "x", ocp.args.Composite(**items))
    step = json.loads((tmp_path / "x" / "_CHECKPOINT_METADATA").read_text())
    assert step["item_handlers"]["ds"] == "orbit_ckpt.items.stateful.StatefulHandler"
    with orbax.Checkpointer(orbax.CompositeCheckpointHandler()) as checkpointer:
        found = checkpointer.restore(
            tmp_path / "x", orbax.args.Composite(p=orbax.args.StandardRestore())
        )
    assert_same_tree(found.p, params)
    assert_same_tree(v1.load_checkpointables(str(tmp_path / "x"), {"p": None})["p"], params)
