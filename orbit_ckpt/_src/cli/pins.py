"""Commands that protect steps from deletion, and stop doing so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orbit_ckpt._src.cli.output import echo, print_json
from orbit_ckpt._src.cli.targets import select_step
from orbit_ckpt._src.formats.locate import Kind, locate
from orbit_ckpt._src.storage.durable import sync_directory, write_file
from orbit_ckpt._src.storage.layout import PINNED
from orbit_ckpt._src.storage.path import storage_errors

_ADVICE = "Check the permissions there."


def pin(paths: Sequence[str], as_json: bool) -> None:
    """Pin steps."""
    steps = [_find_step(path) for path in paths]
    for step in steps:
        with storage_errors(step, "pinning", _ADVICE):
            if not (step / PINNED).exists():
                write_file(step / PINNED, b"")
                sync_directory(step)
    _print("pin", "pinned", steps, as_json)


def unpin(paths: Sequence[str], as_json: bool) -> None:
    """Unpin steps."""
    steps = [_find_step(path) for path in paths]
    for step in steps:
        with storage_errors(step, "unpinning", _ADVICE):
            (step / PINNED).unlink(missing_ok=True)
            sync_directory(step)
    _print("unpin", "unpinned", steps, as_json)


def _find_step(text: str) -> Path:
    """Return the directory of a step.

    Raises:
        CheckpointNotFoundError: There is no checkpoint.
        ValueError: It is a run, an item, or a single file.
    """
    path = select_step(text)
    located = locate(path)
    located.check()
    if located.kind is Kind.RUN:
        raise ValueError(f"{path} is a run; give one of its steps, such as {path}@latest.")
    if located.kind is Kind.ITEM:
        raise ValueError(f"{path} is an item of the checkpoint {path.parent}; give that.")
    if not path.is_dir():
        raise ValueError(f"{path} is a file, which cannot be pinned; only directories can.")
    return path


def _print(command: str, done: str, steps: Sequence[Path], as_json: bool) -> None:
    if as_json:
        print_json(command, paths=list(map(str, steps)))
        return
    for step in steps:
        echo(f"{done} {step}")
