"""Data iterators keep the contract of item handlers, and continue on any number of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt.errors import CheckpointNotFoundError, FormatError, ProcessCountError
from orbit_ckpt.testing import ItemHandlerContract
from orbit_ckpt_dataloader import (
    DataHandler,
    DataRestore,
    DataSave,
    ShardedLoader,
    same_examples,
    same_steps,
)


def loader(process: int = 0, count: int = 1, *, steps: int = 0, seed: int | None = 3) -> Any:
    found = ShardedLoader(range(50), batch_size=12, seed=seed, process=process, count=count)
    for _ in range(steps):
        next(found)
    return found


class Fixed:
    """An iterator whose state is what it was given."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class TestDataHandler(ItemHandlerContract):
    @override
    def handler(self) -> Any:
        return DataHandler()

    @override
    def values(self) -> list[object]:
        return [Fixed({"position": 5}), Fixed([1, {"größe": None}]), Fixed(b'{"next": 1}')]

    @override
    def save_args(self, value: Any) -> Any:
        return DataSave(value)

    @override
    def restore_args(self) -> Any:
        return DataRestore(Fixed())

    @override
    def targets(self, value: Any) -> Any:
        return [(DataRestore(), value.state)]

    @override
    def expect_same(self, found: Any, expected: Any, where: str = "what was loaded") -> None:
        super().expect_same(
            getattr(found, "state", found), getattr(expected, "state", expected), where
        )


def save_as(directory: Path, *iterators: Any) -> None:
    """Save the iterators of several processes."""
    directory.mkdir()
    for process, iterator in enumerate(iterators):
        DataHandler(process=process, count=len(iterators)).save(directory, DataSave(iterator))


def restored(directory: Path, process: int, count: int, *args: Any) -> Any:
    return DataHandler(process=process, count=count).restore(directory, DataRestore(*args))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 3), (6, 4), (3, 3)])
def test_a_loader_continues_on_any_number_of_processes(
    before: int, after: int, seed: int | None, tmp_path: Path
) -> None:
    whole = loader(seed=seed)
    expected = [next(whole) for _ in range(20)]
    save_as(tmp_path / "a", *[loader(i, before, steps=7, seed=seed) for i in range(before)])
    parts = [restored(tmp_path / "a", i, after, loader(i, after, seed=seed)) for i in range(after)]
    found = [[x for part in parts for x in next(part)] for _ in range(13)]
    assert found == expected[7:]


def test_every_epoch_yields_every_example_in_an_order_of_its_own() -> None:
    whole = loader()
    found = [x for _ in range(25) for x in next(whole)]
    epochs = [found[i * 50 : i * 50 + 50] for i in range(6)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6


def test_the_state_of_another_loader_is_refused(tmp_path: Path) -> None:
    save_as(tmp_path / "a", loader(steps=1, seed=1))
    with pytest.raises(ValueError, match=r"'seed': 1\}, not \{'examples': 50, 'seed': 3\}"):
        restored(tmp_path / "a", 0, 1, loader())


def test_processes_at_different_positions_are_named(tmp_path: Path) -> None:
    save_as(tmp_path / "a", loader(0, 2, steps=1), loader(1, 2, steps=2))
    assert next(restored(tmp_path / "a", 1, 2, loader(1, 2))) == next(loader(1, 2, steps=2))
    with pytest.raises(ProcessCountError, match=r"process 0: .*'position': 12.*process 1: .*24"):
        restored(tmp_path / "a", 0, 1, loader())


def test_other_iterators_need_a_function(tmp_path: Path) -> None:
    save_as(tmp_path / "a", Fixed(1), Fixed(1))
    with pytest.raises(ProcessCountError, match=r"a: 2 processes saved .* now there are 3") as info:
        restored(tmp_path / "a", 0, 3, Fixed())
    assert (info.value.saved, info.value.current) == (2, 3)
    assert restored(tmp_path / "a", 0, 3, Fixed(), same_steps).state == 1
    own = restored(tmp_path / "a", 2, 3, None, lambda *given: given)
    assert own == ([1, 1], 2, 3)


@pytest.mark.parametrize(
    ("states", "count", "match"),
    [
        ([{"next_index": 2}, {"next_index": 3}], 1, r"they had read \[2, 3\] elements each"),
        ([{"next_index": 2}] * 2, 3, "they had read 4 elements, which 3 processes cannot share"),
        ([{"epoch": 2}] * 2, 1, r"not of the form \{'next_index': ...\}: \{'epoch': 2\}"),
    ],
)
def test_states_that_cannot_be_divided_are_shown(states: Any, count: int, match: str) -> None:
    with pytest.raises(ProcessCountError, match=match):
        same_examples(states, 0, count)


@pytest.mark.parametrize("batch", [False, True])
def test_grain_continues_on_another_number_of_processes(batch: bool, tmp_path: Path) -> None:
    grain = pytest.importorskip("grain", reason="grain is optional")

    def reader(process: int, count: int) -> Any:
        """Return an iterator of shares of global batches, or of every n-th element."""
        dataset = grain.MapDataset.range(48).shuffle(seed=1)[process::count]
        return iter((dataset.batch(12 // count) if batch else dataset).to_iter_dataset())

    before = [reader(i, 2) for i in range(2)]
    for one in before:
        for _ in range(2 if batch else 12):
            next(one)
    save_as(tmp_path / "a", *before)
    rest = sorted(int(x) for one in before for element in one for x in [*_flat(element)])
    how = same_steps if batch else same_examples
    after = [restored(tmp_path / "a", i, 3, reader(i, 3), how) for i in range(3)]
    assert sorted(int(x) for one in after for element in one for x in [*_flat(element)]) == rest
    assert len(rest) == 24


def _flat(element: Any) -> Any:
    return element.ravel() if hasattr(element, "ravel") else [element]


def test_states_of_two_saves_are_refused(tmp_path: Path) -> None:
    save_as(tmp_path / "a", Fixed(1), Fixed(1))
    DataHandler(process=0, count=1).save(tmp_path / "a", DataSave(Fixed(1)))
    with pytest.raises(FormatError, match="1 of 1 processes and 2 of 2 processes"):
        restored(tmp_path / "a", 0, 2)


def test_a_missing_state_is_noticed(tmp_path: Path) -> None:
    save_as(tmp_path / "a", Fixed(1), Fixed(1))
    (tmp_path / "a" / "process_1-of-2.json").unlink()
    with pytest.raises(FormatError, match="1 of 2 processes"):
        restored(tmp_path / "a", 0, 1, None, same_steps)
    (tmp_path / "a" / "process_0-of-2.json").unlink()
    with pytest.raises(CheckpointNotFoundError, match="no state of a data iterator"):
        restored(tmp_path / "a", 0, 1)


@pytest.mark.parametrize("state", [b"\xff", {1, 2}, object()])
def test_states_that_json_cannot_hold_are_refused(state: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="neither a JSON value nor bytes of text"):
        ocp.Checkpointer(DataHandler()).save(tmp_path / "a", args=DataSave(Fixed(state)))
    assert not (tmp_path / "a").exists()
