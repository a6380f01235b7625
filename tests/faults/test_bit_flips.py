"""Damage to a finished checkpoint: whatever is wrong in whatever file, never a wrong value.

A restore of a damaged checkpoint raises a `CheckpointError`, or returns exactly what was saved.
`nox -s soak` tries many more places.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt.errors import CheckpointError, CorruptionError
from tests.faults.support import (
    DAMAGED,
    LAYOUTS,
    Layout,
    chosen,
    every_kind_of_leaf,
    files_below,
    replaced,
    snapshot,
)
from tests.soak import SOAK, rounds
from tests.support import damage_chunk

FLIPS_PER_LAYOUT = rounds(60, 16_000)

WEIGHTS = np.random.default_rng(3).standard_normal(6000)


class Victim:
    """A checkpoint that is damaged, looked at and mended, many times."""

    def __init__(self, directory: Path, layout: Layout) -> None:
        tree = every_kind_of_leaf()
        layout.save(directory, tree)
        copy = directory.with_name(f"{directory.name} again")
        layout.save(copy, tree)
        self.directory = directory
        self.pristine = files_below(directory)
        self.wrong: list[str] = []
        self._looks = 0
        views: dict[str, Callable[[], object]] = {
            "load": lambda: snapshot(ocp.load(directory)),
            "load like": lambda: snapshot(ocp.load(directory, like=tree)),
            "metadata": lambda: ocp.metadata(directory),
            "diff": lambda: ocp.diff(directory, copy, values=True).is_same,
        }
        self._views = {name: (view, view()) for name, view in views.items()}
        saved = snapshot(tree)
        assert self._views["load"][1] == saved
        assert self._views["load like"][1] == saved
        assert self._views["diff"][1] is True

    def look(self, what: str) -> None:
        """Note whether a view of the damaged checkpoint is wrong or fails with another error."""
        self._looks += 1
        names = ["load", "load like", "metadata", "diff"]
        # the first reads everything; the others read the same files through the same code
        for name in names if self._looks % 8 == 0 else names[:1]:
            view, expected = self._views[name]
            try:
                if view() != expected:
                    self.wrong.append(f"{name} after {what}: not what was saved")
            except CheckpointError:
                pass
            except BaseException as error:  # noqa: BLE001 - any other is what we look for
                self.wrong.append(f"{name} after {what}: {type(error).__name__}: {error}")

    def check(self) -> None:
        assert not self.wrong, f"{len(self.wrong)} wrong:\n" + "\n".join(self.wrong[:40])


@pytest.fixture(scope="module", params=DAMAGED, ids=str)
def pristine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Victim:
    return Victim(tmp_path_factory.mktemp("damaged") / "checkpoint", request.param)


@pytest.fixture
def victim(pristine: Victim) -> Victim:
    pristine.wrong = []
    return pristine


def places(sizes: dict[str, int], count: int) -> Iterator[tuple[str, int]]:
    """Yield files and offsets: at least one of every file, more in proportion to its size."""
    rng = random.Random(2)  # noqa: S311 - not cryptography
    total = sum(sizes.values())
    for name, size in sizes.items():
        for offset in sorted(
            rng.sample(range(size), min(size, max(rounds(1, 2), count * size // total)))
        ):
            yield name, offset


@pytest.mark.slow
def test_a_flipped_bit_never_gives_a_wrong_value(victim: Victim) -> None:
    sizes = {name: len(data) for name, data in victim.pristine.items() if data}
    for name, offset in places(sizes, FLIPS_PER_LAYOUT):
        byte, bit = victim.pristine[name][offset], 1 << (offset * 5 % 8)
        file = os.open(victim.directory / name, os.O_WRONLY)
        os.pwrite(file, bytes([byte ^ bit]), offset)
        victim.look(f"flipping bit {bit} of byte {offset} of {name}")
        os.pwrite(file, bytes([byte]), offset)
        os.close(file)
    victim.check()


@pytest.mark.slow
def test_a_truncated_file_never_gives_a_wrong_value(victim: Victim) -> None:
    for turn, name in enumerate(chosen(victim.pristine)):
        data = victim.pristine[name]
        sizes = [0, len(data) // 2, len(data) - 1]
        for size in sizes if SOAK else [sizes[turn % 3]]:
            with replaced(victim.directory, {name: data[:size]}):
                victim.look(f"cutting {name} to {size} of {len(data)} bytes")
    victim.check()


@pytest.mark.slow
def test_a_file_of_zeros_never_gives_a_wrong_value(victim: Victim) -> None:
    for name in chosen(victim.pristine):
        with replaced(victim.directory, {name: bytes(len(victim.pristine[name]))}):
            victim.look(f"zeroing {name}")
    victim.check()


@pytest.mark.slow
def test_a_deleted_file_never_gives_a_wrong_value(victim: Victim) -> None:
    for name in chosen(victim.pristine):
        with replaced(victim.directory, {name: None}):
            victim.look(f"deleting {name}")
    victim.check()


@pytest.mark.slow
def test_two_files_swapped_never_give_a_wrong_value(victim: Victim) -> None:
    names = sorted(chosen(victim.pristine), key=lambda name: (len(victim.pristine[name]), name))
    for a, b in zip(names, [*names[1:], names[0]], strict=True):
        if a.startswith("d/") and b.startswith("d/"):
            continue  # a chunk checks its bytes, not its place among files of one size
        with replaced(victim.directory, {a: victim.pristine[b], b: victim.pristine[a]}):
            victim.look(f"swapping {a} and {b}")
    victim.check()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_damaged_chunk_is_named_with_its_leaf_and_file(layout: Layout, tmp_path: Path) -> None:
    tree = {"small": np.ones(3), "block": {"w": WEIGHTS.reshape(2, 3000)}}
    path = tmp_path / "checkpoint"
    save_args = {"block": {"w": ocp.SaveArgs(shard_axes=(0,))}}
    layout.save(path, tree, save_args=save_args)
    key = "block.w/c/1/0" if layout.use_zarr3 else "block.w/1.0"
    file = damage_chunk(path, key)
    with pytest.raises(CorruptionError, match="damaged") as caught:
        ocp.load(path)
    assert caught.value.file == file
    assert file in str(caught.value)
    if layout.use_ocdbt and not layout.use_zarr3:
        return  # the file as a whole is compared, and several leaves have chunks in it
    assert (caught.value.path, caught.value.chunk) == ("block/w", key)
    assert str(caught.value).startswith("block/w: ")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_missing_chunk_is_named_with_its_leaf(layout: Layout, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    layout.save(path, {"block": {"w": WEIGHTS}, "small": 1})
    key = "block.w/c/0" if layout.use_zarr3 else "block.w/0"
    place = read_index(path)[key] if layout.use_ocdbt else Extent(str(path / key), 0, 0)
    assert isinstance(place, Extent)
    Path(place.file).unlink()
    with pytest.raises(CorruptionError) as caught:
        ocp.load(path)
    assert Path(place.file).name in str(caught.value)
    if not layout.use_ocdbt:
        assert (caught.value.path, caught.value.chunk) == ("block/w", key)


def test_all_damaged_leaves_are_reported_as_one_checkpoint_error(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Layout(use_ocdbt=False).save(path, {name: np.arange(5000.0) for name in "abc"})
    for name in "abc":
        os.truncate(path / name / "c/0", 100)
    with pytest.raises(CorruptionError, match="is damaged"):
        ocp.load(path)
