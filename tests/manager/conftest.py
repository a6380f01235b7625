"""Managers of one run, and saves that tests hold back or let fail."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.atomic import AtomicDirectory
from orbit_ckpt.testing.background import held_commits

Options = ocp.CheckpointManagerOptions

FIELDS = {field.name for field in dataclasses.fields(Options)}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., ocp.CheckpointManager]]:
    """Open the run at `tmp_path / "run"`, with options by name; close all managers in the end."""
    opened: list[ocp.CheckpointManager] = []

    def open_run(*, options: Options | None = None, **given: Any) -> ocp.CheckpointManager:
        fields = {name: given.pop(name) for name in FIELDS & given.keys()}
        chosen = options or Options(**fields)
        opened.append(ocp.CheckpointManager(tmp_path / "run", options=chosen, **given))
        return opened[-1]

    yield open_run
    for manager in opened:
        manager.close()


@pytest.fixture
def held_commit() -> Iterator[threading.Event]:
    """Hold back everything that saves do in the background until the event is set."""
    with held_commits() as event:
        yield event


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold back commits until the event is set."""
    release = threading.Event()
    commit = AtomicDirectory.commit

    def wait(self: AtomicDirectory) -> None:
        assert release.wait(60)
        commit(self)

    monkeypatch.setattr(AtomicDirectory, "commit", wait)
    yield release
    release.set()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Let commits of the steps in this set fail."""
    names: set[str] = set()
    commit = AtomicDirectory.commit

    def fail(self: AtomicDirectory) -> None:
        if self.final.name in names:
            raise OSError(28, "No space left on device")
        commit(self)

    monkeypatch.setattr(AtomicDirectory, "commit", fail)
    return names
