"""Data of one save in the place of another's is found, though its own checksums are right."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.items.phases import stage_item
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.runtime.process import Process
from orbit_ckpt._src.storage.amend import forget_files
from orbit_ckpt._src.storage.layout import IN_PROGRESS, MANIFEST, Extent
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt.errors import CheckpointError, CorruptionError, IncompleteCheckpointError
from tests.faults.support import LAYOUTS, Layout, files_below
from tests.support import unpack

DATABASES = [layout for layout in LAYOUTS if layout.use_ocdbt]
PLAIN = [layout for layout in DATABASES if not layout.use_compression]
FILES = [layout for layout in LAYOUTS if not layout.use_ocdbt]
of_databases = pytest.mark.parametrize("pair", DATABASES, indirect=True, ids=str)


def tree(seed: int) -> dict[str, Any]:
    """Return a tree that has the same layout for every seed."""
    rng = np.random.default_rng(seed)
    return {
        "a": rng.integers(0, 256, 5000).astype(np.uint8),
        "b": rng.integers(0, 256, 5000).astype(np.uint8),
        "x": jax.numpy.asarray(rng.integers(0, 256, (50, 40)).astype(np.int32)),
        "small": rng.standard_normal(3),
        "step": seed,
        "name": f"run {seed}",
    }


def save_items(path: Path, seed: int) -> None:
    """Save several items in one step."""
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    checkpointer.save(
        path,
        args=ocp.args.Composite(
            params=ocp.args.StandardSave(tree(seed)),
            twin=ocp.args.PyTreeSave(tree(seed + 100)),
            config=ocp.args.JsonSave({"seed": seed}),
        ),
    )


def write_at(place: Extent, data: bytes) -> None:
    """Change the bytes of a value."""
    with open(place.file, "r+b") as file:
        file.seek(place.offset)
        file.write(data)


def values_are_of(path: Path, seed: int) -> bool:
    """Whether a load gives back what was saved, and nothing of another save."""
    found = ocp.load(path)
    return all(np.array_equal(found[name], value) for name, value in tree(seed).items())


def assert_found(path: Path, *, load: Callable[[], object] | None = None) -> None:
    """Assert that verify finds damage, and that a load fails."""
    report = ocp.verify(path)
    assert not report.is_intact, report
    with pytest.raises(CheckpointError):
        (load or (lambda: ocp.load(path)))()


@pytest.fixture(scope="module", params=LAYOUTS, ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of one layout: one to change, one to take from."""
    run = tmp_path_factory.mktemp("run")
    for seed in (1, 2):
        request.param.save(run / str(seed), tree(seed))
    return run


@pytest.fixture
def steps(pair: Path, tmp_path: Path) -> tuple[Path, Path]:
    shutil.copytree(pair, tmp_path / "run")
    return tmp_path / "run" / "1", tmp_path / "run" / "2"


def test_intact_steps_are_said_to_be_intact(steps: tuple[Path, Path]) -> None:
    for step in steps:
        report = ocp.verify(step)
        assert report.is_intact
        assert not report.unchecked
        assert values_are_of(step, int(step.name))


def test_any_one_file_of_the_other_step_is_found(steps: tuple[Path, Path]) -> None:
    mine, other = steps
    pristine, theirs = files_below(mine), files_below(other)
    found = 0
    for name in pristine.keys() & theirs.keys() - {"commit_success.txt"}:
        if pristine[name] == theirs[name]:
            continue
        (mine / name).write_bytes(theirs[name])
        assert not ocp.verify(mine).is_intact, name
        if name != "_CHECKPOINT_METADATA":  # which a load does not need
            with pytest.raises(CheckpointError):
                ocp.load(mine)
        (mine / name).write_bytes(pristine[name])
        found += 1
    assert found >= 2
    assert ocp.verify(mine).is_intact


@of_databases
def test_the_data_of_another_step_is_found(steps: tuple[Path, Path]) -> None:
    mine, other = steps
    names, theirs = sorted(os.listdir(mine / "d")), sorted(os.listdir(other / "d"))
    for name, source in zip(names, theirs, strict=False):
        shutil.copyfile(other / "d" / source, mine / "d" / name)
    assert_found(mine)


@of_databases
@pytest.mark.parametrize("with_manifest", [True, False])
def test_the_database_of_another_step_is_found(
    steps: tuple[Path, Path], with_manifest: bool
) -> None:
    mine, other = steps
    if with_manifest:
        shutil.copyfile(other / "manifest.ocdbt", mine / "manifest.ocdbt")
    shutil.copytree(other / "d", mine / "d", dirs_exist_ok=True)
    if with_manifest:
        assert_found(mine)
    else:  # files that nothing refers to
        assert values_are_of(mine, 1)
        assert any("does not record" in one.what for one in ocp.verify(mine).unchecked)


@of_databases
def test_values_of_another_step_in_a_data_file_are_found(steps: tuple[Path, Path]) -> None:
    mine, other = steps
    theirs = read_index(other)
    exchanged = 0
    for key, place in read_index(mine).items():
        source = theirs[key]
        if not isinstance(place, Extent) or not isinstance(source, Extent):
            continue
        if place.length != source.length:
            continue
        data = Path(source.file).read_bytes()[source.offset : source.offset + source.length]
        write_at(place, data)
        exchanged += 1
    assert exchanged
    assert_found(mine)


@pytest.mark.parametrize("pair", PLAIN, indirect=True, ids=str)
def test_exchanged_values_of_a_step_are_found(steps: tuple[Path, Path]) -> None:
    mine, _ = steps
    index = read_index(mine)
    a, b = (index.get(f"{name}/c/0") or index[f"{name}/0"] for name in "ab")
    assert isinstance(a, Extent)
    assert isinstance(b, Extent)
    assert a.length == b.length
    contents = [Path(place.file).read_bytes()[place.offset :][: place.length] for place in (b, a)]
    for place, data in zip((a, b), contents, strict=True):
        write_at(place, data)
    assert_found(mine)


@pytest.mark.parametrize("pair", FILES, indirect=True, ids=str)
def test_exchanged_directories_of_arrays_are_found(steps: tuple[Path, Path]) -> None:
    mine, _ = steps
    os.rename(mine / "a", mine / "moved")
    os.rename(mine / "b", mine / "a")
    os.rename(mine / "moved", mine / "b")
    assert_found(mine)


@pytest.fixture
def items(tmp_path: Path) -> tuple[Path, Path]:
    for seed in (1, 2):
        save_items(tmp_path / str(seed), seed)
    return tmp_path / "1", tmp_path / "2"


@pytest.mark.parametrize("item", ["params", "config"])
def test_an_item_of_another_step_is_found(items: tuple[Path, Path], item: str) -> None:
    mine, other = items
    shutil.rmtree(mine / item)
    shutil.copytree(other / item, mine / item)
    restore = ocp.Checkpointer(ocp.CompositeCheckpointHandler()).restore
    assert_found(mine, load=lambda: restore(mine))
    if item == "params":
        assert_found(mine)
        with pytest.raises(CheckpointError):
            ocp.load(mine / item)


def test_the_metrics_of_another_step_do_not_rank_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["accuracy"])
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        for step in (1, 2):
            manager.save(step, {"step": step}, metrics={"accuracy": step})
        manager.wait_until_finished()
        assert manager.best_step() == 2
        shutil.rmtree(tmp_path / "1" / "metrics")
        (tmp_path / "2" / "metrics").rename(tmp_path / "1" / "metrics")
        with pytest.raises(CorruptionError, match="another checkpoint"):
            manager.metrics(1)
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        assert manager.best_step() is None
    assert "Step 1 counts as one without metrics" in caplog.text


@pytest.mark.parametrize("part", ["", "/jax_random_key"])
def test_the_random_key_of_another_step_is_found(tmp_path: Path, part: str) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        for seed in (1, 2):
            key = ocp.args.JaxRandomKeySave(jax.random.key(seed))
            manager.save(seed, args=ocp.args.Composite(key=key))
        manager.wait_until_finished()
        mine, other = (tmp_path / step / f"key{part}" for step in "12")
        shutil.rmtree(mine)
        shutil.copytree(other, mine)
        assert_found(tmp_path / "1", load=lambda: manager.restore(1))


def test_exchanged_items_of_one_step_are_found(items: tuple[Path, Path]) -> None:
    mine, _ = items
    os.rename(mine / "params", mine / "moved")
    os.rename(mine / "twin", mine / "params")
    os.rename(mine / "moved", mine / "twin")
    assert_found(mine)


def test_an_item_that_is_saved_anew_is_part_of_its_step(items: tuple[Path, Path]) -> None:
    mine, _ = items
    ocp.save(mine / "params", tree(3), overwrite=True)
    assert values_are_of(mine / "params", 3)
    assert ocp.verify(mine).is_intact


def test_an_item_is_part_of_its_step_again_after_a_replacement_that_was_killed(
    items: tuple[Path, Path],
) -> None:
    mine, other = items
    forget_files(mine, "params/")  # all that a replacement does before it may die
    assert ocp.verify(mine).unchecked
    ocp.save(mine / "params", tree(3), overwrite=True)
    report = ocp.verify(mine)
    assert report.is_intact
    assert not report.unchecked
    shutil.rmtree(mine / "params")
    shutil.copytree(other / "params", mine / "params")
    assert_found(mine)


@pytest.fixture
def half(items: tuple[Path, Path]) -> Path:
    """A step with an item that a killed save in marker mode has replaced in part."""
    step = items[0]
    shutil.rmtree(step / "twin")
    item = step / "params"
    (item / IN_PROGRESS).write_bytes(b"")
    for name in ("_METADATA", "_strings.json", MANIFEST, "commit_success.txt"):
        (item / name).unlink()
    return step


def test_a_half_replaced_item_is_not_loaded_as_the_tree_of_its_step(half: Path) -> None:
    for path in (half, half / "params"):
        with pytest.raises(IncompleteCheckpointError, match="params"):
            ocp.load(path)


def test_another_item_is_not_loaded_in_the_place_of_one_that_is_hardly_begun(
    items: tuple[Path, Path],
) -> None:
    step = items[0]
    assert values_are_of(step, 1)
    shutil.rmtree(step / "params")
    (step / "params").mkdir()
    (step / "params" / IN_PROGRESS).write_bytes(b"")
    with pytest.raises(IncompleteCheckpointError, match="params"):
        ocp.load(step)
    assert values_are_of(step / "twin", 101)


def test_a_half_replaced_item_of_another_kind_does_not_hide_the_tree(
    items: tuple[Path, Path],
) -> None:
    (items[0] / "config" / IN_PROGRESS).write_bytes(b"")
    assert values_are_of(items[0], 1)


def test_a_half_replaced_item_is_damage_and_leaves_the_other_items(half: Path) -> None:
    whats = [(one.file, one.what) for one in ocp.verify(half).damage]
    assert (str(half / "params"), "the save that replaces it did not finish") in whats
    config = ocp.args.Composite(config=ocp.args.JsonRestore())
    with ocp.Checkpointer(ocp.CompositeHandler()) as checkpointer:
        assert checkpointer.restore(half, args=config).config == {"seed": 1}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of a manager with one tree per step."""
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        for seed in (1, 2):
            manager.save(seed, args=ocp.args.StandardSave(tree(seed)))
    return tmp_path / "run"


@pytest.mark.parametrize("part", ["default", "default/d", "default/manifest.ocdbt"])
def test_the_tree_of_another_step_of_a_run_is_found(run: Path, part: str) -> None:
    mine, other = run / "1" / part, run / "2" / part
    if part.endswith("/d"):  # with the names that the index refers to
        for file, source in zip(sorted(mine.iterdir()), sorted(other.iterdir()), strict=True):
            shutil.copyfile(source, file)
    elif mine.is_file():
        shutil.copyfile(other, mine)
        shutil.copytree(other.parent / "d", mine.parent / "d", dirs_exist_ok=True)
    else:
        shutil.rmtree(mine)
        shutil.copytree(other, mine)
    with ocp.CheckpointManager(run) as manager:
        assert_found(run / "1", load=lambda: manager.restore(1))
        assert np.array_equal(manager.restore(2)["b"], tree(2)["b"])
    assert_found(run / "1")


def test_a_whole_step_under_the_name_of_another_is_that_step(run: Path) -> None:
    shutil.rmtree(run / "1")
    shutil.copytree(run / "2", run / "1")
    assert ocp.verify(run / "1").is_intact
    assert values_are_of(run / "1", 2)


def test_the_tree_of_another_step_in_the_layout_of_orbax_v1_is_found(tmp_path: Path) -> None:
    handler = ocp.CompositeCheckpointHandler()
    for seed in (1, 2):
        args = ocp.args.Composite(pytree=ocp.args.StandardSave(tree(seed)))
        ocp.Checkpointer(handler).save(tmp_path / str(seed), args=args)
    assert values_are_of(tmp_path / "1", 1)
    data, theirs = (next((tmp_path / step / "pytree" / "d").iterdir()) for step in "12")
    shutil.copyfile(theirs, data)
    assert_found(tmp_path / "1")


class Note(ocp.CheckpointHandler):
    """Writes a file in its own way."""

    def save(self, directory: Any, args: NoteArgs) -> None:  # type: ignore[override]
        (directory / "note.txt").write_text(args.text)

    def restore(self, directory: Any, args: object = None) -> str:  # type: ignore[override]
        del args  # there is nothing to choose
        return (directory / "note.txt").read_text()

    def finalize(self, directory: Path) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@ocp.args.register_with_handler(Note, for_save=True, for_restore=True)
@dataclass
class NoteArgs(ocp.args.CheckpointArgs):
    text: str = ""


@pytest.mark.parametrize("name", ["note", "default"])
def test_an_item_of_another_step_is_found_whose_handler_knows_no_checksums(
    tmp_path: Path, name: str
) -> None:
    with ocp.CheckpointManager(tmp_path, item_handlers={name: Note()}) as manager:
        for seed in (1, 2):
            items = ocp.args.Composite(**{name: NoteArgs(f"of {seed}")})
            manager.save(seed, args=items)
        manager.wait_until_finished()
        assert manager.restore(1)[name] == "of 1"
        shutil.copyfile(tmp_path / "2" / name / "note.txt", tmp_path / "1" / name / "note.txt")
        assert_found(tmp_path / "1", load=lambda: manager.restore(1))


def save_as_two_processes(path: Path, seed: int) -> None:
    """Save as two processes do; the second has nothing to write."""

    async def run(process: Process) -> Commit:
        handler = ocp.PyTreeHandler(process=process)
        arrays = {name: value for name, value in tree(seed).items() if name != "x"}
        args = {"args": ocp.args.PyTreeSave(arrays)}
        commit = await stage_item(handler, path, args, copy=False)
        await commit.run()
        return commit

    path.mkdir()
    asyncio.run(run(Process(1, 2)))
    asyncio.run(run(Process(0, 2))).finalize()


def test_data_of_another_save_by_several_processes_is_found(tmp_path: Path) -> None:
    for seed in (1, 2):
        save_as_two_processes(tmp_path / str(seed), seed)
    mine, other = tmp_path / "1", tmp_path / "2"
    assert ocp.verify(mine).is_intact
    assert not ocp.verify(mine).unchecked
    data, theirs = (next((step / "ocdbt.process_0" / "d").iterdir()) for step in (mine, other))
    shutil.copyfile(theirs, data)
    assert_found(mine)


@pytest.mark.parametrize("layout", [Layout(), Layout(use_ocdbt=False)], ids=str)
def test_a_lost_manifest_is_logged_and_not_said_to_be_intact(
    tmp_path: Path, layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    layout.save(tmp_path / "1", tree(1))
    (tmp_path / "1" / MANIFEST).unlink()
    assert values_are_of(tmp_path / "1", 1)
    assert [r.levelname for r in caplog.records if MANIFEST in r.getMessage()] == ["WARNING"]
    report = ocp.verify(tmp_path / "1")
    assert not report
    assert [one.file for one in report.damage] == [str(tmp_path / "1" / MANIFEST)]
    assert "is missing" in report.damage[0].what


@pytest.mark.parametrize("item", ["params", "config"])
def test_the_lost_manifest_of_an_item_is_found(items: tuple[Path, Path], item: str) -> None:
    (items[0] / item / MANIFEST).unlink()
    report = ocp.verify(items[0])
    assert [one.file for one in report.damage] == [str(items[0] / item / MANIFEST)]


def test_an_item_without_a_manifest_in_the_place_of_one_that_had_it_is_logged(
    items: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    mine = items[0] / "params"
    (mine / MANIFEST).unlink()
    (mine / "commit_success.txt").unlink()  # which tells of it too
    assert values_are_of(mine, 1)
    assert f"{mine}: {MANIFEST} is missing" in caplog.text


def test_a_checkpoint_that_never_had_a_manifest_is_checked_as_far_as_possible(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Layout().save(tmp_path / "1", tree(1))
    (tmp_path / "1" / MANIFEST).unlink()
    (tmp_path / "1" / "commit_success.txt").write_bytes(b"")
    report = ocp.verify(tmp_path / "1")
    assert report.is_intact
    assert report.unchecked
    assert values_are_of(tmp_path / "1", 1)
    assert not [r for r in caplog.records if MANIFEST in r.getMessage()]


def test_manifests_of_earlier_releases_are_read_and_said_to_cover_less(tmp_path: Path) -> None:
    unpack("manifest-without-database.tar.gz", tmp_path)
    run = tmp_path / "manifest-without-database"
    report = ocp.verify(run)
    assert report.is_intact
    limited = {one.directory for one in report.unchecked if "earlier release" in one.what}
    assert limited == {run / "tree", run / "items" / "params"}
    for step in sorted(run.iterdir()):
        found = ocp.load(step)
        assert found["step"] == 7
        assert np.array_equal(found["b"], np.arange(400))


def test_a_copy_is_as_well_recorded_as_its_source(tmp_path: Path) -> None:
    for seed in (1, 2):
        save_items(tmp_path / str(seed), seed)
    ocp.copy(tmp_path / "1", tmp_path / "copy")
    assert ocp.verify(tmp_path / "copy").is_intact
    shutil.rmtree(tmp_path / "copy" / "params")
    shutil.copytree(tmp_path / "2" / "params", tmp_path / "copy" / "params")
    assert_found(tmp_path / "copy")


def test_a_checkpoint_whose_manifest_is_lost_is_copied_only_if_nothing_is_checked(
    tmp_path: Path,
) -> None:
    Layout().save(tmp_path / "1", tree(1))
    (tmp_path / "1" / MANIFEST).unlink()
    with pytest.raises(CorruptionError, match=rf"{MANIFEST}: it is missing.*--no-verify"):
        ocp.copy(tmp_path / "1", tmp_path / "copy")
    ocp.copy(tmp_path / "1", tmp_path / "copy", check=False)
    assert values_are_of(tmp_path / "copy", 1)


def test_an_item_that_a_copy_replaces_is_part_of_its_step(items: tuple[Path, Path]) -> None:
    mine, other = items
    ocp.copy(other / "params", mine / "params", overwrite=True)
    assert values_are_of(mine / "params", 2)
    assert ocp.verify(mine).is_intact


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_values_about_as_large_as_fit_into_the_index_are_intact(
    tmp_path: Path, layout: Layout
) -> None:
    leaves = {str(n): np.arange(n, dtype=np.uint8) for n in range(1016, 1034)}
    layout.save(tmp_path / "1", leaves)
    report = ocp.verify(tmp_path / "1")
    assert report.is_intact, report
    found = ocp.load(tmp_path / "1")
    assert all(np.array_equal(found[name], value) for name, value in leaves.items())
