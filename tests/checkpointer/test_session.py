from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.runtime.process import Process, ProcessGroup
from orbit_ckpt._src.runtime.rendezvous import KeyValueGroup
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt.errors import (
    BackgroundSaveError,
    CheckpointError,
    CheckpointExistsError,
    ProcessFailedError,
    ProcessTimeoutError,
)
from orbit_ckpt.testing.fakes import MemoryKeyValueStore, fake_processes

COUNT = 3
LONG, SHORT = 20.0, 0.1


class Parts(ocp.CheckpointHandler):
    """An item of which every process writes a file; one may fail, and one may never end.

    The first one waits for that one to write, and for the others to have written, so that who is
    missing in the end does not depend on how fast they are.
    """

    def __init__(
        self,
        group: ProcessGroup,
        failing: dict[int, str] | None = None,
        endless: int | None = None,
        store: MemoryKeyValueStore | None = None,
    ) -> None:
        self.index = group.process.index
        self.failing = (failing or {}).get(self.index)
        self.is_endless = self.index == endless
        self.store = store if self.index == 0 else None

    async def stage(self, directory: Path, args: object, *, copy: bool) -> Commit:
        del args, copy
        self.fail_at("stage")

        async def write() -> None:
            self.fail_at("write")
            if self.store:
                await asyncio.to_thread(self.wait_for_others, self.store)
            if self.is_endless:
                await asyncio.Event().wait()
            write_file(directory / f"part_{self.index}", b"")

        def finalize() -> None:
            assert self.index == 0
            self.fail_at("finalize")
            assert len(list(directory.glob("part_*"))) == COUNT

        return Commit(write, finalize)

    @staticmethod
    def wait_for_others(store: MemoryKeyValueStore) -> None:
        store.wait_for_key(lambda key: key.endswith("/phase/1") and store.get(key, 0) == b"writing")
        store.wait_for_key(lambda key: key.endswith("/arrived/written/2"))

    def fail_at(self, phase: str) -> None:
        if self.failing == phase:
            raise ValueError(f"no {phase} today")

    def save(self, directory: Path, args: object) -> None: ...
    def restore(self, directory: Path, args: object) -> None: ...
    def finalize(self, directory: Path) -> None: ...
    def close(self) -> None: ...


@ocp.args.register_with_handler(Parts, for_save=True, for_restore=True)
class PartsArgs(ocp.args.CheckpointArgs):
    pass


def save_on_all(
    groups: Sequence[ProcessGroup],
    path: Path,
    *,
    failing: dict[int, str] | None = None,
    endless: int | None = None,
    background: bool = False,
) -> list[Exception | None]:
    """Return what the save raised on every process."""

    def save(group: ProcessGroup) -> Exception | None:
        options = ocp.MultiprocessingOptions(timeout_secs=LONG, group=group)
        kind = ocp.AsyncCheckpointer if background else ocp.Checkpointer
        try:
            handler = Parts(group, failing, endless)
            with kind(handler, multiprocessing_options=options) as checkpointer:
                checkpointer.save(path, args=PartsArgs())
        except Exception as error:  # noqa: BLE001 - looked at by the test
            return error
        return None

    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(save, groups))


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("background", [False, True])
def test_all_processes_write_one_checkpoint(tmp_path: Path, background: bool) -> None:
    raised = save_on_all(fake_processes(COUNT), tmp_path / "a", background=background)
    assert raised == [None] * COUNT
    assert {"part_0", "part_1", "part_2", "_CHECKPOINT_METADATA"} < set(names_in(tmp_path / "a"))
    assert names_in(tmp_path) == ["a"]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("guilty", "phase"), [(0, "stage"), (0, "write"), (0, "finalize"), (2, "stage"), (2, "write")]
)
def test_failure_of_one_is_raised_on_all_and_leaves_nothing(
    tmp_path: Path, guilty: int, phase: str, background: bool
) -> None:
    groups = fake_processes(COUNT)
    path = tmp_path / "a"
    raised = save_on_all(groups, path, failing={guilty: phase}, background=background)
    for index, error in enumerate(raised):
        cause = error.__cause__ if isinstance(error, BackgroundSaveError) else error
        assert isinstance(cause, ValueError if index == guilty else ProcessFailedError)
        assert f"no {phase} today" in str(error)
        assert index == guilty or f"process {guilty} failed while" in str(error)
    assert names_in(tmp_path) == []
    assert save_on_all(groups, path) == [None] * COUNT


@pytest.mark.slow
class Failing(MemoryKeyValueStore):
    """A service that is gone once processes tell of an error, or leave."""

    def put_new(self, key: str, value: bytes) -> bool:
        if value.startswith(b"-"):
            raise ProcessFailedError("the service is gone", process=0)
        return super().put_new(key, value)

    def add(self, key: str, amount: int) -> int:
        if key.endswith("-count"):
            return super().add(key, amount)
        raise ProcessFailedError(f"the service is gone: no {key} + {amount}", process=0)


def test_an_error_that_the_others_cannot_be_told_is_raised_as_it_is(tmp_path: Path) -> None:
    group = KeyValueGroup(Failing(), Process(0, COUNT))
    (error,) = save_on_all([group], tmp_path / "x", failing={0: "stage"})
    assert isinstance(error, ValueError)
    assert error.__notes__ == ["The other processes could not be informed: the service is gone"]
    assert names_in(tmp_path) == []


def test_a_save_is_a_good_one_if_the_service_is_gone_at_its_end(tmp_path: Path) -> None:
    store = Failing()
    groups = [KeyValueGroup(store, Process(index, COUNT)) for index in range(COUNT)]
    assert save_on_all(groups, tmp_path / "x") == [None] * COUNT
    assert names_in(tmp_path) == ["x"]


def test_failure_stops_those_that_write(tmp_path: Path) -> None:
    raised = save_on_all(fake_processes(COUNT), tmp_path / "a", failing={0: "write"}, endless=1)
    assert "process 0 failed while writing" in str(raised[1])


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True])
def test_process_that_writes_for_too_long_is_named(tmp_path: Path, background: bool) -> None:
    store = MemoryKeyValueStore()

    def save(index: int) -> None:
        group = KeyValueGroup(store, Process(index, COUNT))
        handler = Parts(group, endless=1, store=store)
        limit_s = LONG if index else SHORT
        if background:
            options = ocp.MultiprocessingOptions(group=group)
            checkpointer = ocp.AsyncCheckpointer(
                handler,
                async_options=ocp.AsyncOptions(timeout_secs=limit_s),
                multiprocessing_options=options,
            )
        else:
            options = ocp.MultiprocessingOptions(group=group, timeout_secs=limit_s)
            checkpointer = ocp.Checkpointer(handler, multiprocessing_options=options)
        with checkpointer:
            checkpointer.save(tmp_path / "a", args=PartsArgs())

    def error_of(index: int) -> BaseException | None:
        with pytest.raises((ProcessTimeoutError, BackgroundSaveError)) as caught:
            save(index)
        return caught.value.__cause__ if background else caught.value

    with ThreadPoolExecutor(COUNT) as pool:
        errors = list(pool.map(error_of, range(COUNT)))
    for error in errors:
        assert isinstance(error, ProcessTimeoutError)
        assert error.missing == {1: "writing"}
        assert "'written'" in str(error)
    assert names_in(tmp_path) == []


def test_items_that_only_another_process_has_are_not_lost_in_silence(tmp_path: Path) -> None:
    def save(group: ProcessGroup) -> str:
        options = ocp.MultiprocessingOptions(timeout_secs=LONG, group=group)
        names = ["a", "b"] if group.process.index == 1 else ["a"]
        items = ocp.args.Composite(**{name: ocp.args.JsonSave(1) for name in names})
        with (
            ocp.Checkpointer(ocp.CompositeHandler(), multiprocessing_options=options) as saver,
            pytest.raises(CheckpointError) as caught,
        ):
            saver.save(tmp_path / "x", items)
        return str(caught.value)

    with ThreadPoolExecutor(COUNT) as pool:
        errors = list(pool.map(save, fake_processes(COUNT)))
    expected = "x: other processes save items ['b'], which the primary process does not"
    assert all(expected in error for error in errors)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("odd", [0, 1])
def test_an_item_that_another_process_saves_with_another_handler_is_not_lost(
    odd: int, tmp_path: Path
) -> None:
    def save(group: ProcessGroup) -> str:
        options = ocp.MultiprocessingOptions(timeout_secs=LONG, group=group)
        kind = ocp.args.JsonSave if group.process.index == odd else ocp.args.StandardSave
        with (
            ocp.Checkpointer(ocp.CompositeHandler(), multiprocessing_options=options) as saver,
            pytest.raises(CheckpointError) as caught,
        ):
            saver.save(tmp_path / "x", ocp.args.Composite(state=kind({"a": 1})))
        return str(caught.value)

    with ThreadPoolExecutor(COUNT) as pool:
        errors = list(pool.map(save, fake_processes(COUNT)))
    assert all("x: process 1 saves item 'state' with " in error for error in errors), errors
    assert names_in(tmp_path) == []


def test_taken_path_is_an_error_on_all(tmp_path: Path) -> None:
    groups = fake_processes(COUNT)
    assert save_on_all(groups, tmp_path / "a") == [None] * COUNT
    first, *others = save_on_all(groups, tmp_path / "a")
    assert isinstance(first, CheckpointExistsError)
    assert all("already exists" in str(error) for error in others)
    assert names_in(tmp_path) == ["a"]
