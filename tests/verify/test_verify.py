"""`verify` finds whatever would make a load fail, and says what it is."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.layout import MANIFEST
from orbit_ckpt._src.storage.manifest import Manifest
from orbit_ckpt.errors import CheckpointError, CheckpointNotFoundError, IncompleteCheckpointError
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

FLIPS = rounds(15, 3200)
WEIGHTS = np.random.default_rng(3).standard_normal(6000)


class Victim:
    """A checkpoint that is damaged, verified and mended, many times."""

    def __init__(self, directory: Path, layout: Layout) -> None:
        layout.save(directory, every_kind_of_leaf())
        self.directory = directory
        self.pristine = files_below(directory)
        self.saved = snapshot(ocp.load(directory))
        self.wrong: list[str] = []
        self.found = 0

    def look(self, what: str, *names: str) -> None:
        """Note whether a damage that a load finds is not found, or no file is named for it."""
        try:
            is_loaded = snapshot(ocp.load(self.directory)) == self.saved
        except CheckpointError:
            is_loaded = False
        report = ocp.verify(self.directory)
        self.found += not report
        if report and not is_loaded:
            self.wrong.append(f"{what}: not found")
        told = "\n".join(map(str, report.damage))
        if not report and not any(os.path.basename(name) in told for name in names):
            self.wrong.append(f"{what}: {names} not named in {told}")


@pytest.fixture(scope="module", params=DAMAGED, ids=str)
def pristine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Victim:
    return Victim(tmp_path_factory.mktemp("verified") / "checkpoint", request.param)


@pytest.fixture
def victim(pristine: Victim) -> Iterator[Victim]:
    pristine.wrong, pristine.found = [], 0
    yield pristine
    assert not pristine.wrong, f"{len(pristine.wrong)} wrong:\n" + "\n".join(pristine.wrong[:20])
    assert ocp.verify(pristine.directory)  # mended


@pytest.mark.slow
def test_flipped_bits_are_found(victim: Victim) -> None:
    rng = random.Random(5)  # noqa: S311 - not cryptography
    names = [name for name, data in victim.pristine.items() if data]
    weights = [len(victim.pristine[name]) for name in names]
    for name in [*chosen(names), *rng.choices(names, weights, k=FLIPS)]:
        data = bytearray(victim.pristine[name])
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with replaced(victim.directory, {name: bytes(data)}):
            victim.look(f"flipping a bit of {name}", name)
    assert victim.found > FLIPS // 2


@pytest.mark.slow
def test_cut_zeroed_and_missing_files_are_found(victim: Victim) -> None:
    for turn, name in enumerate(chosen(victim.pristine)):
        data = victim.pristine[name]
        states = [None, b"", data[:-1], data[: len(data) // 2], bytes(len(data))]
        for state in states if SOAK else [states[turn % len(states)]]:
            with replaced(victim.directory, {name: state}):
                victim.look(f"{name} with {state and len(state)} of {len(data)} bytes", name)


@pytest.mark.slow
def test_swapped_files_are_found(victim: Victim) -> None:
    names = sorted(chosen(victim.pristine), key=lambda name: (len(victim.pristine[name]), name))
    for a, b in zip(names, [*names[1:], names[0]], strict=True):
        if a.startswith("d/") and b.startswith("d/"):
            continue  # a chunk checks its bytes, not its place among files of one size
        with replaced(victim.directory, {a: victim.pristine[b], b: victim.pristine[a]}):
            victim.look(f"swapping {a} and {b}", a, b)


@pytest.mark.parametrize("layout", LAYOUTS[:-1], ids=str)
def test_all_damage_is_in_one_report_with_leaf_chunk_and_file(
    layout: Layout, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    layout.save(path, {"a": WEIGHTS, "b": WEIGHTS + 1, "c": 1, "text": "x"})
    intact = ocp.verify(path)
    assert (intact.is_intact, intact.leaves, intact.chunks) == (True, 4, 3)
    keys = [f"{leaf}/c/0" if layout.use_zarr3 else f"{leaf}/0" for leaf in "ab"]
    files = [damage_chunk(path, key) for key in keys]
    (path / "_strings.json").unlink()
    report = ocp.verify(path)
    found = {(one.leaf, one.chunk, one.file) for one in report.damage}
    if layout.use_ocdbt and not layout.use_zarr3:
        # the manifest tells of the file only, in which both leaves have chunks
        wanted = {(None, None, file) for file in files}
    else:
        wanted = set(zip("ab", keys, files, strict=True))
    assert found - {("text", None, str(path / "_strings.json"))} >= wanted
    assert str(path / "_strings.json") in {one.file for one in report.damage}
    assert not report
    for one in report.damage:
        assert one.file is not None
        assert str(one.file) in str(report)


def test_a_run_is_checked_step_by_step(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as run:
        for step in (1, 2, 10):
            run.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave({"w": WEIGHTS}), note=ocp.args.JsonSave({"a": 1})
                ),
                metrics={"loss": 1.0},
            )
    report = ocp.verify(tmp_path / "run")
    assert [path.name for path in report.checkpoints] == ["1", "2", "10"]
    assert (report.is_intact, report.leaves, report.unchecked) == (True, 3, ())
    (tmp_path / "run/2/note/metadata").write_text('{"a": 2}')
    (tmp_path / "run/10/state/_METADATA").unlink()
    (tmp_path / "run/11.orbax-checkpoint-tmp-5").mkdir()
    report = ocp.verify(tmp_path / "run")
    assert {one.checkpoint.name for one in report.damage} == {"2", "10"}
    assert [one.count for one in report.unchecked if "did not finish" in one.what] == [1]
    assert ocp.verify(tmp_path / "run" / "1" / "state").is_intact


def test_a_step_of_a_later_version_cannot_be_verified_but_is_not_damaged(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as run:
        for step in (1, 2, 3):
            run.save(step, {"w": WEIGHTS})
    (tmp_path / "run/2" / MANIFEST).write_bytes(Manifest(version=99).to_bytes())
    report = ocp.verify(tmp_path / "run")
    assert (report.damage, report.is_intact, bool(report)) == ((), False, False)
    assert [one.checkpoint.name for one in report.unverifiable] == ["2"]
    assert "run/2/" in str(report)
    assert "cannot be verified: 1\n" in str(report)
    assert "\nintact" not in str(report)
    assert report.leaves == 2
    (tmp_path / "run/3/default/_METADATA").unlink()
    both = ocp.verify(tmp_path / "run")
    assert {one.checkpoint.name for one in both.damage} == {"3"}
    assert both.unverifiable == report.unverifiable


def test_an_item_that_is_gone_is_damage(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as run:
        run.save(1, {"w": WEIGHTS}, metrics={"loss": 1.0})
    for file in (tmp_path / "run/1/default").rglob("*"):
        if file.is_file():
            file.unlink()
    assert not ocp.verify(tmp_path / "run/1")


def test_a_small_budget_is_enough(tmp_path: Path) -> None:
    ocp.save(tmp_path / "checkpoint", {"w": np.zeros((3000, 1000))})
    report = ocp.verify(tmp_path / "checkpoint", max_bytes=1000)
    assert report.is_intact
    assert report.chunks == 1


def test_progress_comes_to_its_end(tmp_path: Path) -> None:
    Layout(use_compression=False).save(tmp_path / "checkpoint", {"w": np.zeros((3000, 1000))})
    told: list[tuple[int, int]] = []
    ocp.verify(tmp_path / "checkpoint", progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] > 0.99 * told[-1][1] > 2.3e7


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty directory", "unfinished"])
def test_what_is_no_checkpoint_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / ("x.orbax-checkpoint-tmp-1" if what == "unfinished" else "x")
    if what == "a file":
        path.write_text("x")
    elif what != "nothing":
        path.mkdir()
    error = IncompleteCheckpointError if what == "unfinished" else CheckpointNotFoundError
    with pytest.raises(error):
        ocp.verify(path)


@pytest.mark.parametrize(
    "content",
    [b"garbage", b"\0" * 60, b"Checkpoint commit was succ"],
    ids=["garbage", "zeros", "truncated"],
)
def test_a_commit_marker_with_other_content_is_damage_but_commits(
    tmp_path: Path, content: bytes
) -> None:
    ocp.save(tmp_path / "1", {"w": np.ones(3)})
    marker = tmp_path / "1" / "commit_success.txt"
    marker.write_bytes(content)
    (damage,) = ocp.verify(tmp_path / "1").damage
    assert damage.file == str(marker)
    assert ocp.load(tmp_path / "1")["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["commit_success.txt", "cfg/commit_success.txt", "cfg/metadata"])
def test_a_directory_in_the_place_of_a_file_is_damage(tmp_path: Path, name: str) -> None:
    file = tmp_path / "1" / name
    with ocp.Checkpointer(ocp.CompositeHandler()) as checkpointer:
        args = ocp.args.Composite(cfg=ocp.args.JsonSave({"a": 1}))
        checkpointer.save(tmp_path / "1", args=args)
        file.unlink()
        file.mkdir()
        assert [one.file for one in ocp.verify(tmp_path / "1").damage] == [str(file)]
        if file.name == "metadata":
            with pytest.raises(CheckpointError, match="is a directory"):
                checkpointer.restore(tmp_path / "1")
        else:
            wanted = ocp.args.Composite(cfg=ocp.args.JsonRestore())
            assert checkpointer.restore(tmp_path / "1", args=wanted).cfg == {"a": 1}


def test_an_empty_commit_marker_may_be_a_person_s_and_is_named(tmp_path: Path) -> None:
    ocp.save(tmp_path / "1", {"w": np.ones(3)})
    (tmp_path / "1" / "commit_success.txt").write_bytes(b"")
    report = ocp.verify(tmp_path / "1")
    assert report.is_intact
    assert "commit marker that is empty" in str(report)


def test_a_moved_checkpoint_is_intact(tmp_path: Path) -> None:
    ocp.save(tmp_path / "1", {"w": np.ones(3)})
    (tmp_path / "1").rename(tmp_path / "best")
    report = ocp.verify(tmp_path / "best")
    assert report.is_intact
    assert not report.unchecked
