"""Orbax's functions for names and paths of steps."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as orbax
import pytest
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt import options, step, utils
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, IN_PROGRESS
from orbit_ckpt.path import atomicity, atomicity_defaults, deleter, format_utils

TREE = {"w": np.arange(3.0)}
MARKED = options.AtomicityOptions(options.AtomicityMode.COMMIT_FILE)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run with four steps, an unfinished save of this library and one of Orbax."""
    with ocp.CheckpointManager(tmp_path) as manager:
        for number in (0, 5, 10, 20):
            manager.save(number, TREE)
    for name in (f"30{step.TMP_DIR_SUFFIX}", f"40{step.TMP_DIR_SUFFIX}-orbit-123"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes").mkdir()
    return tmp_path


CALLS: list[tuple[str, Any]] = [
    ("names", lambda lib, _: [lib.step.standard_name_format(**o).build_name(7) for o in (
        {}, {"step_prefix": "s"}, {"step_format_fixed_length": 3})]),
    ("find_all", lambda lib, root: sorted(
        (m.step, m.path.name) for m in lib.step.standard_name_format().find_all(root))),
    ("find_step", lambda lib, root: lib.step.standard_name_format().find_step(root, 5).path.name),
    ("times", lambda lib, root: [(m.init_timestamp_nsecs, m.commit_timestamp_nsecs) for m in [
        lib.step.standard_name_format().find_step(root, 5)]]),
    ("metadata", lambda lib, root: [(m.step, m.commit_timestamp_nsecs, str(m.path)) for m in [
        lib.step.Metadata(step=5, path=root / "5")]]),
    ("latest", lambda lib, root: lib.step.latest_step_metadata(
        root, lib.step.standard_name_format()).step),
    ("latest of none", lambda lib, root: lib.step.latest_step_metadata(
        root / "5", lib.step.standard_name_format())),
    ("of a path", lambda lib, root: lib.step.step_metadata_of_checkpoint_path(
        root / "10", lib.step.standard_name_format()).step),
    ("of another path", lambda lib, root: lib.step.step_metadata_of_checkpoint_path(
        root / "notes", lib.step.standard_name_format())),
    ("maybe", lambda lib, root: [found and found.step for found in (
        lib.step.maybe_find_step_metadata(root, lib.step.standard_name_format(), step=n)
        for n in (5, 6))]),
    ("missing", lambda lib, root: lib.step.standard_name_format().find_step(root, 6)),
    ("path", lambda lib, root: lib.step.find_step_path(
        root, lib.step.standard_name_format(), step=10).name),
    ("unfinished path", lambda lib, root: lib.step.find_step_path(
        root, lib.step.standard_name_format(), step=30, include_uncommitted=True).name),
    ("finished path", lambda lib, root: lib.step.find_step_path(
        root, lib.step.standard_name_format(), step=10, include_uncommitted=True).name),
    ("no path", lambda lib, root: lib.step.find_step_path(
        root, lib.step.standard_name_format(), step=30)),
    ("temporary", lambda lib, root: sorted(lib.step.tmp_checkpoints(root))),
    ("temporary paths", lambda lib, root: sorted(
        (p.get().name, p.get_final().name) for p in lib.step.all_temporary_paths(root))),
    ("of no run", lambda lib, root: (
        lib.step.tmp_checkpoints(root / "none"), lib.utils.checkpoint_steps_paths(root / "none"))),
    ("is temporary", lambda lib, root: [lib.step.is_path_temporary(path) for path in (
        root / "5", root / f"30{step.TMP_DIR_SUFFIX}", root / "nothing")]),
    ("is finalized", lambda lib, root: [lib.step.is_checkpoint_finalized(path) for path in (
        root / "5", root / f"30{step.TMP_DIR_SUFFIX}", root / "nothing")]),
    ("steps", lambda lib, root: sorted(lib.utils.checkpoint_steps(root))),
    ("paths", lambda lib, root: sorted(p.name for p in lib.utils.checkpoint_steps_paths(root))),
    ("any", lambda lib, root: lib.utils.any_checkpoint_step(root) in (0, 5, 10, 20)),
    ("any of none", lambda lib, root: lib.utils.any_checkpoint_step(root / "notes")),
    ("prefix", lambda lib, _: [
        lib.step.step_prefix_with_underscore(prefix) for prefix in (None, "", "a")]),
    ("from names", lambda lib, _: [lib.utils.step_from_checkpoint_name(name) for name in (
        "7", "007", "a_7", "a_b_12", f"7{step.TMP_DIR_SUFFIX}-1", f"a_7{step.TMP_DIR_SUFFIX}")]),
    ("from another name", lambda lib, _: lib.utils.step_from_checkpoint_name("abc")),
    ("from an empty prefix", lambda lib, _: lib.utils.step_from_checkpoint_name("_191")),
    ("directories", lambda lib, root: [str(lib.utils.get_save_directory(3, root, **o)) for o in (
        {}, {"name": "state"}, {"step_prefix": "s", "step_format_fixed_length": 4},
        {"override_directory": root / "x", "name": "state"},
        {"step_name_format": lib.step.standard_name_format(step_prefix="q")})]),
    ("standard", lambda lib, _: lib.step.is_standard_name_format(
        lib.step.standard_name_format())),
    ("build", lambda lib, root: sorted(lib.step.build_step_metadatas(
        [root / "5", root / "notes"], lambda p: int(p.name) if p.name.isdigit() else None))),
    ("composite", lambda lib, root: [(
        names.build_name(1), sorted(m.step for m in names.find_all(root)),
        names.find_step(root, 5).path.name) for names in [lib.step.composite_name_format(
            lib.step.standard_name_format(step_prefix="new"),
            [lib.step.standard_name_format(step_prefix="new"),
             lib.step.standard_name_format()])]]),
    ("composite without its own", lambda lib, _: lib.step.composite_name_format(
        lib.step.standard_name_format(step_prefix="new"), [lib.step.standard_name_format()])),
    ("default class", lambda lib, root: [
        lib.path.atomicity_defaults.get_default_temporary_path_class(root / "5").__name__,
        lib.path.atomicity_defaults.get_default_temporary_path_class(
            root, atomicity_options=lib.options.AtomicityOptions(
                lib.options.AtomicityMode.COMMIT_FILE)).__name__]),
    ("formats", lambda lib, root: [(
        lib.path.format_utils.is_orbax_checkpoint(path), lib.path.format_utils.is_ocdbt_checkpoint(
            path)) for path in (root / "5", root / "5" / "default", root / "notes", root)]),
    ("format of nothing", lambda lib, root: lib.path.format_utils.is_orbax_checkpoint(root / "x")),
]  # fmt: skip


@pytest.mark.interop
@pytest.mark.parametrize(("name", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_functions_return_what_those_of_orbax_return(name: str, call: Any, run: Path) -> None:
    expected, found = (outcome(library, call, run) for library in (orbax, ocp))
    if isinstance(expected, Exception):
        kinds = [kind for kind in (ValueError, FileNotFoundError) if isinstance(expected, kind)]
        assert all(isinstance(found, kind) for kind in kinds), name
    else:
        assert found == expected, name


def outcome(library: Any, call: Any, run: Path) -> object:
    """Return the result of a call, or the error that it raises."""
    try:
        return call(library, run)
    except (ValueError, FileNotFoundError) as error:
        return error


def test_modules_are_attributes_and_can_be_imported() -> None:
    for name in ocp.path.__all__:
        module = importlib.import_module(f"orbit_ckpt.path.{name}")
        assert getattr(ocp.path, name) is module
    assert ocp.path.step.NameFormat is ocp.step.NameFormat


# A run whose names changed


@dataclass
class Dated(ocp.step.NameFormat[ocp.step.Metadata]):
    """Names of a program's own, which it finds itself."""

    suffix: str = "k"

    @override
    def build_name(self, step: int) -> str:
        return f"{step}{self.suffix}"

    @override
    def find_all(self, base_path: Path) -> Iterator[ocp.step.Metadata]:
        for path in Path(base_path).glob(f"*{self.suffix}"):
            yield ocp.step.Metadata(int(path.name.removesuffix(self.suffix)), path)

    @override
    def find_step(self, base_path: Path, step: int) -> ocp.step.Metadata:
        found = [one for one in self.find_all(base_path) if one.step == step]
        if not found:
            raise ValueError(f"no step {step}")
        return found[0]


@pytest.mark.parametrize("old", [ocp.StepNameFormat(), Dated()], ids=["parser", "finder"])
def test_run_continues_under_other_names(old: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(
        tmp_path, options=ocp.CheckpointManagerOptions(step_name_format=old)
    ) as manager:
        manager.save(1, TREE)
    new = ocp.StepNameFormat("step", 4)
    names = step.composite_name_format(new, [new, old])
    given = ocp.CheckpointManagerOptions(step_name_format=names, max_to_keep=2)
    with ocp.CheckpointManager(tmp_path, options=given) as manager:
        assert manager.all_steps() == [1]
        assert list(manager.restore(1)) == ["w"]
        manager.save(2, TREE)
        manager.save(3, TREE)
    assert ocp.CheckpointManager(tmp_path, options=given).all_steps() == [2, 3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_0002", "step_0003"]


def test_preferred_name_of_a_step_counts(tmp_path: Path) -> None:
    for name in ("7", "step_7"):
        ocp.save(tmp_path / name, TREE)
    new, old = ocp.StepNameFormat("step"), ocp.StepNameFormat()
    names = step.composite_name_format(new, [old, new])
    assert names.find_step(tmp_path, 7).path == tmp_path / "7"
    assert len(list(names.find_all(tmp_path))) == 2


def test_own_names_find_steps_and_paths(tmp_path: Path) -> None:
    ocp.save(tmp_path / "7k", TREE)
    assert step.latest_step_metadata(tmp_path, Dated()) == ocp.step.Metadata(7, tmp_path / "7k")
    assert step.find_step_path(tmp_path, Dated(), step=7) == tmp_path / "7k"


def test_names_that_list_for_all_are_standard_ones() -> None:
    names = ocp.StepNameFormat("a")
    assert step.single_host_load_and_broadcast_name_format(names) is names
    with pytest.raises(ValueError, match="standard name formats"):
        step.single_host_load_and_broadcast_name_format(Dated())
    with pytest.warns(UserWarning, match="primary process of a manager always lists"):
        step.standard_name_format(single_host_load_and_broadcast=True)


def test_step_without_a_record_has_the_time_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    found = step.Metadata(7, tmp_path / "7")
    assert (found.init_timestamp_nsecs, found.commit_timestamp_nsecs) == (None, None)
    modified = datetime.fromtimestamp((tmp_path / "7").stat().st_mtime, UTC)
    assert abs((found.commit_timestamp - modified).total_seconds()) < 1e-3


# Marker mode


def test_marker_mode_ignores_directories_without_marker(run: Path) -> None:
    (run / "10" / COMMIT_MARKER).unlink()
    names = step.standard_name_format(atomicity_options=MARKED)
    assert [found.step for found in names.find_all(run)] == [0, 5, 20]
    by_class = step.standard_name_format(temporary_path_cls=atomicity.CommitFileTemporaryPath)
    assert by_class == names
    with pytest.raises(ValueError, match="no step 10"):
        names.find_step(run, 10)
    assert step.is_path_temporary(run / "10", atomicity_options=MARKED)
    assert not step.is_path_finalized(run / "10", atomicity_options=MARKED)
    assert step.is_path_finalized(run / "10")


def test_save_in_place_is_temporary_until_it_ends(tmp_path: Path) -> None:
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / IN_PROGRESS).touch()
    assert step.tmp_checkpoints(tmp_path) == ["3"]
    (found,) = utils.tmp_checkpoints(tmp_path)
    assert found.get() == found.get_final() == tmp_path / "3"


# Temporary paths

CLASSES = [atomicity.AtomicRenameTemporaryPath, atomicity.CommitFileTemporaryPath]


@pytest.mark.parametrize("kind", CLASSES)
def test_directory_appears_once_it_is_finalized(kind: Any, tmp_path: Path) -> None:
    store = ocp.metadata.metadata_store(enable_write=True, blocking_write=True)
    path = kind.from_final(tmp_path / "5", checkpoint_metadata_store=store)
    assert path.get_final() == tmp_path / "5"
    assert not path.get().exists()
    created = asyncio.run(path.create())
    (created / "_METADATA").write_text("{}")
    asyncio.run(kind.validate(path.get()))
    with pytest.raises(atomicity.ValidationError):
        asyncio.run(kind.validate_final(path.get()))
    assert not step.is_path_finalized(tmp_path / "5")
    assert (
        step.find_step_path(tmp_path, ocp.StepNameFormat(), step=5, include_uncommitted=True)
        == path.get()
    )
    asyncio.run(path.finalize())
    asyncio.run(kind.validate_final(tmp_path / "5"))
    assert step.is_path_finalized(tmp_path / "5", atomicity_options=MARKED)
    found = step.Metadata(5, tmp_path / "5")
    assert 0 < (found.init_timestamp_nsecs or 0) <= (found.commit_timestamp_nsecs or 0)


def test_temporary_path_tells_its_final_one(tmp_path: Path) -> None:
    path = tmp_path / f"5{step.TMP_DIR_SUFFIX}-1"
    found = atomicity.AtomicRenameTemporaryPath.from_temporary(path)
    assert found.get_final() == tmp_path / "5"
    with pytest.raises(ocp.errors.CheckpointError, match="from_final"):
        asyncio.run(found.finalize())
    with pytest.raises(ValueError, match="not a temporary path"):
        atomicity.AtomicRenameTemporaryPath.from_temporary(tmp_path / "5")


def test_read_only_paths_are_sent_as_bytes(tmp_path: Path) -> None:
    one = atomicity.ReadOnlyTemporaryPath.from_paths(
        temporary_path=tmp_path / "a", final_path=tmp_path / "b"
    )
    other = atomicity.ReadOnlyTemporaryPath.from_bytes(one.to_bytes())
    assert (other.get(), other.get_final()) == (tmp_path / "a", tmp_path / "b")
    with pytest.raises(NotImplementedError, match="AtomicRenameTemporaryPath"):
        asyncio.run(other.create())


@pytest.mark.parametrize(
    ("kind", "is_in_place"), [(CLASSES[0], False), (CLASSES[1], True)], ids=["rename", "marker"]
)
def test_class_of_temporary_paths_chooses_the_mode(
    kind: Any, is_in_place: bool, tmp_path: Path
) -> None:
    checkpointer = ocp.Checkpointer(ocp.JsonHandler(), temporary_path_class=kind)
    found = checkpointer.get_temporary_path(tmp_path / "5")
    assert type(found) is kind
    assert (found.get() == tmp_path / "5") is is_in_place
    managed = ocp.CheckpointManagerOptions(temporary_path_class=kind)
    assert managed.atomicity_options is not None
    assert (managed.atomicity_options.mode is options.AtomicityMode.COMMIT_FILE) is is_in_place
    with ocp.CheckpointManager(tmp_path / "run", options=managed) as manager:
        manager.save(0, TREE)
        assert list(manager.restore(0)) == ["w"]


def test_class_that_contradicts_the_options_is_refused() -> None:
    with pytest.raises(ValueError, match="contradicts atomicity_options"):
        ocp.Checkpointer(
            ocp.JsonHandler(),
            temporary_path_class=atomicity.AtomicRenameTemporaryPath,
            atomicity_options=MARKED,
        )


def test_default_class_is_that_of_the_storage(tmp_path: Path) -> None:
    kind = atomicity_defaults.get_default_temporary_path_class
    assert kind(tmp_path) is atomicity.AtomicRenameTemporaryPath
    assert kind("gs://bucket/run/5") is atomicity.CommitFileTemporaryPath


def test_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="is a file"):
        format_utils.is_orbax_checkpoint(tmp_path / "file")


# Deletion


@pytest.mark.parametrize("in_background", [False, True])
def test_deleter_deletes_steps(in_background: bool, run: Path) -> None:
    deleting = deleter.create_checkpoint_deleter(
        run, name_format=ocp.StepNameFormat(), enable_background_delete=in_background
    )
    deleting.delete(5)
    deleting.delete_steps([0, 10])
    with pytest.raises(ocp.errors.StepNotFoundError):
        deleting.delete(5)
    deleting.close()
    assert ocp.CheckpointManager(run).all_steps() == [20]
    assert not [p for p in run.iterdir() if "deleted" in p.name]


def test_deleter_moves_steps_aside(run: Path) -> None:
    deleting = deleter.create_checkpoint_deleter(
        run, name_format=ocp.StepNameFormat(), todelete_subdir="trash"
    )
    deleting.delete(5)
    deleting.close()
    assert (run / "trash" / "5" / "default").is_dir()
    assert utils.checkpoint_steps(run) == [0, 10, 20]


def test_failed_background_deletion_is_logged(
    run: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("refused")

    deleting = deleter.create_checkpoint_deleter(
        run, name_format=ocp.StepNameFormat(), enable_background_delete=True
    )
    monkeypatch.setattr("orbit_ckpt._src.manager.garbage_collection.StepDeleter.remove", refuse)
    with caplog.at_level(logging.ERROR):
        deleting.delete(5)
        deleting.close()
    assert "refused" in caplog.text


def test_moving_deleted_steps_within_a_bucket_is_refused(run: Path) -> None:
    with pytest.raises(ValueError, match="todelete_full_path is not supported"):
        deleter.create_checkpoint_deleter(
            run, name_format=ocp.StepNameFormat(), todelete_full_path="x"
        )
