"""Names of steps, and the steps of a run as they are listed."""

from __future__ import annotations

import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt._src.manager.index import StepIndex
from orbit_ckpt._src.manager.step_names import StepNameFormat
from orbit_ckpt._src.manager.steps import (
    StepNames,
    as_step,
    latest_step,
    list_steps,
)
from orbit_ckpt._src.metadata.step_details import StepDetails, write_step_details
from orbit_ckpt._src.storage.atomic import AtomicDirectory, AtomicityMode, looks_like_checkpoint
from orbit_ckpt._src.storage.layout import IN_PROGRESS, PINNED, STEP_DETAILS, STEP_METADATA
from orbit_ckpt.errors import StepNotFoundError, StorageError
from tests.support import GOLDEN, unpack

ARABIC_7 = "\N{ARABIC-INDIC DIGIT SEVEN}"

TREE = {"w": np.arange(3.0)}

formats = st.builds(
    StepNameFormat,
    prefix=st.none() | st.text(st.characters(exclude_characters="/\0"), max_size=8),
    fixed_length=st.none() | st.integers(0, 12),
    separator=st.sampled_from(["_", "-", "", "."]),
)


@pytest.fixture(autouse=True)
def _quiet_orbax() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def make_step(directory: Path, *, sign: str = STEP_METADATA, content: str = "{}") -> Path:
    """Make a directory that counts as a step."""
    (directory / sign).parent.mkdir(parents=True)
    (directory / sign).write_text(content)
    return directory


def numbers(root: Path, names: StepNames | None = None) -> list[int]:
    """Return the listed steps."""
    return [record.step for record in list_steps(root, names or StepNameFormat())]


@pytest.mark.parametrize(
    ("format_", "name"),
    [
        (StepNameFormat(), "7"),
        (StepNameFormat(fixed_length=4), "0007"),
        (StepNameFormat("step"), "step_7"),
        (StepNameFormat("step", 4), "step_0007"),
        (StepNameFormat(""), "_7"),
        (StepNameFormat("checkpoint"), "checkpoint_7"),
        (StepNameFormat("run", separator="-"), "run-7"),
    ],
)
def test_names_are_those_of_orbax_and_others(format_: StepNameFormat, name: str) -> None:
    assert format_.build_name(7) == name
    assert format_.parse(name) == 7


@given(formats, st.integers(0, 10**20))
def test_parse_inverts_build(format_: StepNameFormat, step: int) -> None:
    assert format_.parse(format_.build_name(step)) == step


@given(
    st.none() | st.from_regex(r"[a-z.]{1,5}", fullmatch=True),
    st.none() | st.integers(0, 12),
    st.integers(0, 10**12),
)
def test_names_are_built_as_orbax_does(prefix: str | None, length: int | None, step: int) -> None:
    reference = orbax.step.standard_name_format(step_prefix=prefix, step_format_fixed_length=length)
    assert StepNameFormat(prefix, length).build_name(step) == reference.build_name(step)


MIXED = [
    *("7", "0007", "00008", "12345", "-5", "+6", "9x", "x9", ARABIC_7, "7_8", "1_000"),
    *("step_7", "step_0007", "step_00009", "step_12345", "step_-1", "Step_9", "step7"),
    *("step_step_3", "a.step_4", "7.orbax-checkpoint-tmp-1"),
]


@pytest.mark.parametrize("prefix", [None, "step", "none"])
@pytest.mark.parametrize("length", [None, 4])
def test_every_step_that_orbax_finds_is_found(
    prefix: str | None, length: int | None, tmp_path: Path
) -> None:
    for name in MIXED:
        make_step(tmp_path / name)
    reference = orbax.step.standard_name_format(step_prefix=prefix, step_format_fixed_length=length)
    found = {(r.step, r.path) for r in list_steps(tmp_path, StepNameFormat(prefix, length))}
    assert found >= {(m.step, Path(m.path)) for m in reference.find_all(tmp_path)}


@pytest.mark.parametrize(
    "name",
    [
        *("-5", "+6", "9x", "x9", ARABIC_7, "7_8", "1_000", "step_7", "7\n", ""),
        *("7.orbax-checkpoint-tmp-1", "7.tmp-1"),
    ],
)
def test_other_names_are_not_steps(name: str) -> None:
    assert StepNameFormat().parse(name) is None


def test_steps_of_another_padding_are_not_hidden(tmp_path: Path) -> None:
    make_step(tmp_path / "0007")
    make_step(tmp_path / "8")
    assert numbers(tmp_path) == numbers(tmp_path, StepNameFormat(fixed_length=4)) == [7, 8]


@pytest.mark.parametrize("value", [5, np.int64(5), np.uint8(5), np.array(5), jnp.int32(5)])
def test_integers_of_every_kind_are_steps(value: object) -> None:
    assert as_step(value) == 5
    assert type(as_step(value)) is int


@pytest.mark.parametrize(
    "value", [True, np.True_, jnp.array(True), 5.0, np.float32(5), "5", None, np.array([5, 6])]
)
def test_other_values_are_no_steps(value: object) -> None:
    with pytest.raises(TypeError, match=r"The step must be an integer, found .*int\("):
        as_step(value)


@pytest.mark.parametrize("value", [-1, np.int32(-1), jnp.int32(-1)])
def test_negative_steps_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="The step must be at least 0, found -1"):
        as_step(value)
    with pytest.raises(ValueError, match="found -1"):
        StepNameFormat().build_name(value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prefix": "a/b"}, "'a/b_' cannot be found again"),
        ({"prefix": "a", "separator": "/"}, "cannot be found again"),
        ({"prefix": "x.orbax-checkpoint-tmp"}, "cannot be found again"),
        ({"fixed_length": -1}, "fixed_length must be at least 0, found -1"),
    ],
)
def test_formats_whose_names_cannot_be_used_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        StepNameFormat(**arguments)


def test_a_run_that_does_not_exist_has_no_steps(tmp_path: Path) -> None:
    assert list_steps(tmp_path / "none", StepNameFormat()) == []


def test_a_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(StorageError, match="run: listing steps failed"):
        list_steps(tmp_path / "run", StepNameFormat())


@pytest.mark.parametrize(
    "sign",
    [
        *("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt", "checkpoint"),
        *("commit_success.txt", "orbit_manifest.json", "state/_METADATA", "state/checkpoint"),
        *("config/metadata",),
    ],
)
def test_files_of_a_checkpoint_make_a_step(sign: str, tmp_path: Path) -> None:
    make_step(tmp_path / "7", sign=sign)
    assert looks_like_checkpoint(tmp_path / "7")
    assert numbers(tmp_path) == [7]


@pytest.mark.parametrize(
    "file", ["notes.txt", "state/notes.txt", "state.orbax-checkpoint-tmp-1/_METADATA"]
)
def test_other_directories_are_no_steps(file: str, tmp_path: Path) -> None:
    make_step(tmp_path / "7", sign=file)
    (tmp_path / "8").mkdir()
    (tmp_path / "9").touch()
    (tmp_path / "10").symlink_to(tmp_path / "nowhere")
    assert numbers(tmp_path) == []


def test_steps_are_in_ascending_order(tmp_path: Path) -> None:
    for step in (100, 9, 0, 20):
        make_step(tmp_path / str(step))
    assert numbers(tmp_path) == [0, 9, 20, 100]


def test_latest_step_is_the_last_that_is_listed(tmp_path: Path) -> None:
    assert latest_step(tmp_path, StepNameFormat()) is None
    for name in ("9", "009", "0", "7"):
        make_step(tmp_path / name)
    (tmp_path / "12").mkdir()
    assert latest_step(tmp_path, StepNameFormat()) == list_steps(tmp_path, StepNameFormat())[-1]


@pytest.mark.parametrize("mode", AtomicityMode)
def test_a_save_that_is_not_committed_is_not_listed(mode: AtomicityMode, tmp_path: Path) -> None:
    with AtomicDirectory(tmp_path / "7", mode=mode) as directory:
        (directory.path / STEP_METADATA).write_text("{}")
        assert numbers(tmp_path) == []
        directory.commit()
        assert numbers(tmp_path) == [7]


def test_a_step_that_is_being_removed_is_not_listed(tmp_path: Path) -> None:
    make_step(tmp_path / "7")
    (tmp_path / "7" / IN_PROGRESS).touch()
    assert numbers(tmp_path) == []


def test_a_step_that_vanishes_while_listing_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_step(tmp_path / "7")
    scandir = os.scandir

    def scan(path: Any) -> Any:
        if str(path) == str(tmp_path / "7"):
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert numbers(tmp_path) == []


def test_an_index_scans_the_directory_of_a_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(7, args=ocp.args.StandardSave(TREE), metrics={"loss": 0.5})
    scanned: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scanned.append(str(path)) or scandir(path))
    [info] = StepIndex(tmp_path, StepNameFormat()).infos()
    assert scanned == [str(tmp_path), str(tmp_path / "7")]
    assert (info.metrics, info.items) == ({"loss": 0.5}, {"default", "metrics"})


def test_commit_time_is_the_recorded_one(tmp_path: Path) -> None:
    document = {"commit_timestamp_nsecs": 1_700_000_000_123_456_789, "later": float("nan")}
    make_step(tmp_path / "7", content=json.dumps(document))
    [record] = list_steps(tmp_path, StepNameFormat())
    assert record.commit_time == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not JSON",
        "[]",
        '{"commit_timestamp_nsecs": null}',
        '{"commit_timestamp_nsecs": "now"}',
        '{"commit_timestamp_nsecs": 1e300}',
        json.dumps({"commit_timestamp_nsecs": 10**40}),
    ],
)
def test_commit_time_falls_back_to_the_directory_s(content: str, tmp_path: Path) -> None:
    step = make_step(tmp_path / "7", content=content)
    os.utime(step, (1, 1_600_000_000))
    [record] = list_steps(tmp_path, StepNameFormat())
    assert record.commit_time == datetime.fromtimestamp(1_600_000_000, UTC)


def test_metadata_that_cannot_be_read_do_not_hide_a_step(tmp_path: Path) -> None:
    (tmp_path / "7" / STEP_METADATA).mkdir(parents=True)
    (tmp_path / "7" / STEP_DETAILS).mkdir()
    [record] = list_steps(tmp_path, StepNameFormat())
    assert not record.temporary


def test_pinned_and_temporary_steps_are_marked(tmp_path: Path) -> None:
    (make_step(tmp_path / "1") / PINNED).touch()
    write_step_details(make_step(tmp_path / "2"), StepDetails(temporary=True))
    write_step_details(make_step(tmp_path / "3"), StepDetails(temporary=False))
    marks = [(r.step, r.pinned, r.temporary) for r in list_steps(tmp_path, StepNameFormat())]
    assert marks == [(1, True, False), (2, False, True), (3, False, False)]


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2, "temporary": true}'])
def test_details_that_are_not_understood_leave_a_step_permanent(text: str, tmp_path: Path) -> None:
    (make_step(tmp_path / "7") / STEP_DETAILS).write_text(text)
    [record] = list_steps(tmp_path, StepNameFormat())
    assert not record.temporary


def test_of_two_directories_the_one_with_the_exact_name_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("007", "0007", "7"):
        make_step(tmp_path / name)
    for names, used in (
        (StepNameFormat(), "7"),
        (StepNameFormat(fixed_length=3), "007"),
        (StepNameFormat(fixed_length=4), "0007"),
        (StepNameFormat(fixed_length=6), "0007"),
    ):
        [record] = list_steps(tmp_path, names)
        assert record.path == tmp_path / used
    assert "Step 7 is there twice" in caplog.text
    assert f"{tmp_path / '7'} is used" in caplog.text


def test_a_directory_that_is_no_checkpoint_does_not_hide_one(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    make_step(tmp_path / "0007")
    [record] = list_steps(tmp_path, StepNameFormat())
    assert record.path == tmp_path / "0007"


def test_the_warning_about_duplicates_comes_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_step(tmp_path / "7")
    make_step(tmp_path / "07")
    for _ in range(3):
        list_steps(tmp_path, StepNameFormat())
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1


class Hexadecimal:
    """A format of a user's, as a parser of names."""

    def build_name(self, step: int) -> str:
        return f"{step:x}"

    def parse(self, name: str) -> int | None:
        return int(name, 16) if set(name) <= set("0123456789abcdef") else None


def test_a_parser_of_the_user_s_is_used(tmp_path: Path) -> None:
    make_step(tmp_path / "ff")
    make_step(tmp_path / "step")
    assert numbers(tmp_path, Hexadecimal()) == [255]


def test_name_formats_of_orbax_are_used(tmp_path: Path) -> None:
    plain = orbax.step.standard_name_format()
    padded = orbax.step.standard_name_format(step_prefix="a", step_format_fixed_length=3)
    both = orbax.step.composite_name_format(padded, [padded, plain])
    for name in ("7", "a_007", "8", "a_009"):
        make_step(tmp_path / name)
    (tmp_path / "11").mkdir()
    assert numbers(tmp_path, plain) == [7, 8]
    assert numbers(tmp_path, both) == [7, 8, 9]
    assert list_steps(tmp_path, both)[0].path == tmp_path / "a_007"
    assert list_steps(tmp_path / "none", both) == []


def test_an_object_that_finds_no_names_is_refused(tmp_path: Path) -> None:
    names: Any = "step_{}"
    with pytest.raises(TypeError, match="give a StepNameFormat, or an object with build_name"):
        list_steps(tmp_path, names)


def test_own_checkpoints_are_steps(tmp_path: Path) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    for step in (1, 2):
        ocp.save(tmp_path / f"step_{step}", TREE)
    records = list_steps(tmp_path, StepNameFormat("step"))
    assert [record.step for record in records] == [1, 2]
    assert before < records[0].commit_time < records[1].commit_time < datetime.now(UTC)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, StepNameFormat()),
        ({"max_to_keep": 2}, StepNameFormat()),
        ({"step_prefix": "ckpt", "step_format_fixed_length": 5}, StepNameFormat("ckpt", 5)),
        ({"save_root_metadata": True, "enable_async_checkpointing": False}, StepNameFormat()),
    ],
)
@pytest.mark.parametrize("composite", [False, True])
def test_steps_of_orbax_s_manager_are_listed(
    options: dict[str, Any], names: StepNameFormat, composite: bool, tmp_path: Path
) -> None:
    save: Any = orbax.args.StandardSave(TREE)
    if composite:
        save = orbax.args.Composite(state=save, config=orbax.args.JsonSave({"a": 1}))
    manager_options = orbax.CheckpointManagerOptions(**options)
    metadata = {"run": "x"} if options.get("save_root_metadata") else None
    with orbax.CheckpointManager(tmp_path, options=manager_options, metadata=metadata) as manager:
        for step in (0, 3, 12):
            manager.save(step, args=save)
        manager.wait_until_finished()
        kept = sorted(manager.all_steps())
        records = list_steps(tmp_path, names)
    assert [record.step for record in records] == kept
    reference = orbax.step.standard_name_format(
        step_prefix=names.prefix, step_format_fixed_length=names.fixed_length
    )
    for record in records:
        found = reference.find_step(tmp_path, record.step)
        assert record.path == Path(found.path)
        assert abs(record.commit_time - found.commit_timestamp) < timedelta(microseconds=2)


def test_steps_of_past_releases_of_orbax_are_listed(tmp_path: Path) -> None:
    names = {"manager-step-name": StepNameFormat("ckpt", 8)}
    runs = 0
    for archive in GOLDEN.glob("orbax-*.tar.gz"):
        for run in unpack(archive.name, tmp_path / archive.name).glob("manager-*"):
            assert numbers(run, names.get(run.name)) == [7], run
            runs += 1
    assert runs >= 14


def test_steps_of_a_t5x_run_are_listed() -> None:
    records = list_steps(GOLDEN / "t5x_keep_pinned", StepNameFormat("checkpoint"))
    assert [(r.step, r.pinned) for r in records] == [(2, True), (4, False), (5, False)]


def test_helpers_answer_as_those_of_orbax(tmp_path: Path) -> None:
    for name in ("7", "ckpt_0008", "a_b_9", "10.orbax-checkpoint-tmp", "notes", "x11"):
        make_step(tmp_path / name)
    assert ocp.step.checkpoint_steps(tmp_path) == [7, 8, 9]
    assert sorted(orbax.utils.checkpoint_steps(tmp_path)) == [7, 8, 9]
    formats = {module: module.step.standard_name_format for module in (ocp, orbax)}
    for module, name_format in formats.items():
        plain = name_format()
        prefixed = name_format(step_prefix="ckpt", step_format_fixed_length=4)
        latest: Any = module.step.latest_step_metadata(tmp_path, prefixed)
        assert (latest.step, Path(latest.path)) == (8, tmp_path / "ckpt_0008")
        assert module.step.latest_step_metadata(tmp_path / "notes", plain) is None
        found = module.step.find_step_path(tmp_path, prefixed, step=8)
        assert Path(found) == tmp_path / "ckpt_0008"
        assert Path(module.step.build_step_path(tmp_path, prefixed, 3)) == tmp_path / "ckpt_0003"
        assert module.utils.is_checkpoint_finalized(tmp_path / "7")
        assert not module.utils.is_checkpoint_finalized(tmp_path / "10.orbax-checkpoint-tmp")
    with pytest.raises(StepNotFoundError, match="no step 9"):
        ocp.step.find_step_path(tmp_path, ocp.step.standard_name_format(), step=9)
