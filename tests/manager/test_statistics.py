"""Events that a manager sends to its logger."""

from __future__ import annotations

import dataclasses
import logging as standard_logging
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as orbax
import pytest

import orbit_ckpt as ocp
from orbit_ckpt import logging
from orbit_ckpt.logging import step_statistics

TREE = {"w": np.arange(3.0)}


class Recorder(ocp.logging.AbstractLogger):
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.receives_commits = False

    def log_entry(self, msg: Any, *_: Any, **__: Any) -> None:
        self.events.append(msg)


def events_of(library: Any, root: Path, **options: Any) -> list[dict[str, Any]]:
    """Return the events of two saves and a restore with one of the libraries."""

    class Logger(Recorder, library.logging.AbstractLogger):
        pass

    logger = Logger()
    given = library.CheckpointManagerOptions(**options)
    with library.CheckpointManager(root, options=given, logger=logger) as manager:
        for step in (1, 2):
            manager.save(step, args=library.args.StandardSave(TREE))
        manager.wait_until_finished()
        manager.restore(2, args=library.args.StandardRestore())
    return logger.events


@pytest.mark.interop
@pytest.mark.parametrize("is_async", [True, False])
def test_events_have_the_keys_and_facts_of_orbax(is_async: bool, tmp_path: Path) -> None:
    options = {"enable_async_checkpointing": is_async}
    expected = events_of(orbax, tmp_path / "orbax", **options)
    found = events_of(ocp, tmp_path / "ours", **options)
    facts = ("event_type", "step", "synchronous", "reached_preemption")
    for theirs, ours in zip(expected, found, strict=True):
        assert theirs.keys() <= ours.keys()
        assert {key: theirs.get(key) for key in facts} == {key: ours.get(key) for key in facts}
        measured = {key for key, value in theirs.items() if isinstance(value, float)}
        missing = {key for key in measured if not isinstance(ours[key], float)}
        assert missing <= {"get_old_steps_start_time", "get_old_steps_duration_secs"}


def test_times_of_a_save_are_in_order(tmp_path: Path) -> None:
    first, second, restored = events_of(ocp, tmp_path)
    for event in (first, second):
        starts = [
            event["checkpoint_manager_blocking_start_time"],
            event["wait_for_prev_start_time"],
            event["checkpointer_blocking_start_time"],
        ]
        assert starts == sorted(starts)
        assert (
            event["checkpointer_blocking_duration_secs"]
            <= event["checkpoint_manager_blocking_duration_secs"]
        )
    assert first["time_between_consecutive_saves_sec"] is None
    assert second["time_between_consecutive_saves_sec"] > 0
    assert restored["checkpointer_start_time"] >= restored["checkpoint_manager_start_time"]
    assert str(tmp_path) == first["directory"] == restored["directory"]


def test_events_go_to_all_loggers_and_to_the_standard_library(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    recorder, ordinary = Recorder(), Recorder()
    recorder.receives_commits = True
    logger = logging.CompositeLogger(recorder, ordinary, logging.StandardLogger())
    with caplog.at_level(standard_logging.INFO):
        with ocp.CheckpointManager(tmp_path, logger=logger) as manager:
            manager.save(0, TREE)
        logging.StandardLogger().log_entry("%s of %d", "one", 2)
    assert sorted(event["event_type"] for event in recorder.events) == ["commit", "save"]
    assert [event["event_type"] for event in ordinary.events] == ["save"]
    assert "'event_type': 'save'" in caplog.text
    assert "one of 2" in caplog.text


def test_logger_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="CompositeLogger: each logger must be an object with"):
        logging.CompositeLogger(print)  # pyright: ignore[reportArgumentType] - to be refused


def test_statistics_have_the_fields_of_orbax() -> None:
    for name in ("SaveStepStatistics", "RestoreStepStatistics"):
        ours = getattr(step_statistics, name)()
        theirs = getattr(orbax.logging.step_statistics, name)()
        assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
