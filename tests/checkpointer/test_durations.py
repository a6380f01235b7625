"""What listeners of `jax.monitoring` hear of saves and restores."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.monitoring
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import CheckpointExistsError, CheckpointNotFoundError

WRITE, READ = "/jax/checkpoint/write/durations_sec", "/jax/checkpoint/read/durations_sec"
SYNC = "/jax/orbax/write/total_duration_secs"
ASYNC = {
    "/jax/orbax/write/async/total_duration_secs",
    "/jax/checkpoint/write/async/total_duration_secs",
}

TREE = {"w": np.arange(6.0), "step": 3}


@pytest.fixture
def heard() -> Iterator[list[tuple[str, float]]]:
    """Return what a listener hears of checkpoints."""
    events: list[tuple[str, float]] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "/jax/checkpoint/" in event or "/jax/orbax/" in event:
            assert kwargs in ({}, {"storage_type": "other"})
            events.append((event, duration_secs))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


def names(heard: list[tuple[str, float]]) -> list[str]:
    """Return the sorted names heard since the last call, and forget them."""
    assert all(seconds > 0 for _, seconds in heard)
    found = sorted(name for name, _ in heard)
    heard.clear()
    return found


def test_every_save_and_restore_is_heard_once(
    tmp_path: Path, heard: list[tuple[str, float]]
) -> None:
    ocp.save(tmp_path / "a", TREE)
    assert names(heard) == sorted([WRITE, SYNC])
    ocp.load(tmp_path / "a")
    assert names(heard) == [READ, "/jax/orbax/read/total_duration_secs"]
    ocp.save_async(tmp_path / "b", TREE).result()
    assert names(heard) == sorted([WRITE, *ASYNC])
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(tmp_path / "c", TREE)
    checkpointer.restore(tmp_path / "c")
    assert [name for name in names(heard) if name in (WRITE, READ)] == [READ, WRITE]


def test_a_managers_are_heard_too(tmp_path: Path, heard: list[tuple[str, float]]) -> None:
    with ocp.CheckpointManager(tmp_path) as run:
        for step in range(3):
            run.save(step, args=ocp.args.StandardSave(TREE))
        run.wait_until_finished()
        assert names(heard).count(WRITE) == 3
        run.restore(2)
        assert names(heard).count(READ) == 1


def test_what_failed_is_not_heard(tmp_path: Path, heard: list[tuple[str, float]]) -> None:
    ocp.save(tmp_path / "a", TREE)
    heard.clear()
    with pytest.raises(CheckpointExistsError):
        ocp.save(tmp_path / "a", TREE)
    with pytest.raises(CheckpointNotFoundError):
        ocp.load(tmp_path / "nothing")
    assert names(heard) == []


def test_a_listener_that_fails_does_not_fail_a_save_that_is_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event in (WRITE, READ):
            raise RuntimeError(f"no network for {duration_secs}, {kwargs}")

    jax.monitoring.register_event_duration_secs_listener(fail)
    try:
        with caplog.at_level(logging.ERROR):
            ocp.save_async(tmp_path / "a", TREE).result()
            assert ocp.load(tmp_path / "a")["step"] == 3
    finally:
        jax.monitoring.unregister_event_duration_listener(fail)
    assert caplog.text.count("a listener of jax.monitoring failed") == 2
