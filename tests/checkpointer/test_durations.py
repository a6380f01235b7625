"""What listeners of `jax.monitoring` hear of saves and restores."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.monitoring
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import CheckpointExistsError, CheckpointNotFoundError
from tests.support import wait_until

WRITE, READ = "/jax/checkpoint/write/durations_sec", "/jax/checkpoint/read/durations_sec"
SYNC = {f"/jax/orbax/write/{what}_duration_secs" for what in ("total", "blocking")}
ASYNC = {
    f"/jax/{library}/write/async/{what}_duration_secs"
    for library in ("orbax", "checkpoint")
    for what in ("total", "blocking")
}
ORBAX_READ = [f"/jax/orbax/read/{what}_duration_secs" for what in ("blocking", "total")]
GIB = 1 << 30

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
    assert names(heard) == sorted([WRITE, *SYNC])
    ocp.load(tmp_path / "a")
    assert names(heard) == [READ, *ORBAX_READ]
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


@pytest.fixture
def numbers() -> Iterator[dict[str, float]]:
    """Return the last scalar of every name, and how often events without a value were heard."""
    found: dict[str, float] = {}

    def scalar(event: str, value: float | int, **_: str | int) -> None:
        found[event] = value

    def count(event: str, **_: str | int) -> None:
        found[event] = found.get(event, 0) + 1

    jax.monitoring.register_scalar_listener(scalar)
    jax.monitoring.register_event_listener(count)
    yield found
    jax.monitoring.unregister_scalar_listener(scalar)
    jax.monitoring.unregister_event_listener(count)


@pytest.mark.parametrize("is_async", [False, True])
def test_sizes_and_rates_are_heard_under_orbax_names(
    is_async: bool, tmp_path: Path, numbers: dict[str, float], heard: list[tuple[str, float]]
) -> None:
    save = ocp.save_async if is_async else ocp.save
    save(tmp_path / "a", {"w": np.zeros(1 << 17), "n": np.ones(8)})
    ocp.load(tmp_path / "a") if not is_async else wait_until(
        lambda: "/jax/orbax/write/success" in numbers
    )
    seconds = dict(heard)
    total = seconds[WRITE]
    blocked = seconds[f"/jax/orbax/write/{'async/' if is_async else ''}blocking_duration_secs"]
    gbytes = numbers["/jax/orbax/write/gbytes"]
    assert gbytes == ((1 << 20) + 64) / GIB
    assert numbers["/jax/orbax/write/gbytes_per_sec"] == pytest.approx(gbytes / total)
    assert numbers["/jax/orbax/write/blocking_gbytes_per_sec"] == pytest.approx(gbytes / blocked)
    assert blocked < total if is_async else blocked == total
    assert numbers["/jax/orbax/write/success"] == 1


def test_the_bytes_of_a_load_are_those_read(tmp_path: Path, numbers: dict[str, float]) -> None:
    ocp.save(tmp_path / "a", {"a": np.arange(1 << 14), "b": np.arange(1 << 14)})
    ocp.load(tmp_path / "a", only="a")
    one = numbers["/jax/checkpoint/read/gbytes"]
    ocp.load(tmp_path / "a")
    assert numbers["/jax/checkpoint/read/gbytes"] == pytest.approx(2 * one)
    assert 0 < one * GIB <= (8 << 14) + 4
    assert numbers["/jax/checkpoint/read/gbytes_per_sec"] > 0
    assert numbers["/jax/orbax/read/success"] == 2


def test_a_preemption_is_heard_once(tmp_path: Path, numbers: dict[str, float]) -> None:
    with ocp.CheckpointManager(tmp_path) as run:
        run.install_signal_handler(signal.SIGUSR1)
        assert not run.reached_preemption(1)
        assert "/jax/orbax/write/preemption" not in numbers
        signal.raise_signal(signal.SIGUSR1)
        assert run.reached_preemption(1)
        assert run.should_save(1)
    assert numbers["/jax/orbax/write/preemption"] == 1


def test_the_log_has_one_line_per_save_and_restore(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "orbit_ckpt"):
        ocp.save(tmp_path / "a", TREE)
        ocp.save_async(tmp_path / "b", TREE).result()
        ocp.load(tmp_path / "a")
    number = r"[\d.e+-]+"
    rate = rf"{number} m?s \({number} MB/s\)"
    saved, saved_async, restored = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(rf"Saved {tmp_path}/a: 56 B in {rate}", saved)
    assert re.fullmatch(
        rf"Saved {tmp_path}/b: 56 B in {rate}, blocked for {number} m?s", saved_async
    )
    assert re.fullmatch(rf"Restored {tmp_path}/a: \d+ B in {rate}", restored)
