"""The paths users give: relative, with `~`, or any `os.PathLike`."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Generator
from pathlib import Path

from orbit_ckpt.errors import CheckpointError, StorageError


def resolve_path(path: str | os.PathLike[str]) -> Path:
    """Return an absolute local path.

    Raises:
        ValueError: The path is empty, or a URL of a store that is not supported.
    """
    text = os.fspath(path)
    if not text:
        raise ValueError("The path of a checkpoint is empty; give a directory.")
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        raise ValueError(
            f"{text}: checkpoints on {scheme}:// are not supported; give a local directory."
        )
    return Path(os.path.abspath(os.path.expanduser(rest if separator else text)))


@functools.lru_cache(maxsize=8)
def as_epath(path: Path) -> Path:
    """Return a path of the class that type handlers written for Orbax expect."""
    from etils import epath  # noqa: PLC0415 - its import costs more than the rest of ours

    return epath.Path(path)


@contextlib.contextmanager
def storage_errors(path: Path | str, doing: str, advice: str) -> Generator[None]:
    """Turn errors of the operating system into ours.

    Args:
        path: What is being worked on.
        doing: What is being done, `saving` for example.
        advice: What the user should do about it.

    Raises:
        StorageError: The block raised an `OSError` that is not ours.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise StorageError(f"{path}: {doing} failed: {error}. {advice}") from error


def describe_directory(path: Path) -> str:
    """Return what is at a path, for messages."""
    if not path.exists():
        parent = path.parent
        near = sorted(p.name for p in parent.iterdir())[:8] if parent.is_dir() else []
        return f"nothing is there (beside it: {', '.join(near)})" if near else "nothing is there"
    if not path.is_dir():
        return f"it is a file of {path.stat().st_size} bytes"
    names = sorted(p.name for p in path.iterdir())
    if not names:
        return "it is an empty directory"
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"it is a directory with {', '.join(names[:8])}{more}"
