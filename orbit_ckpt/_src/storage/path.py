"""Resolve the paths that users pass: relative, with `~`, or any `os.PathLike`."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar, cast

from orbit_ckpt._src.errors import CheckpointError, StorageError
from orbit_ckpt._src.storage.layout import TEMPORARY_SUFFIX
from orbit_ckpt._src.storage.other_files import recognize
from orbit_ckpt._src.storage.store_path import StorePath, is_store_url, parse_store_url
from orbit_ckpt._src.text import shorten_list

PathLike = str | os.PathLike[str]
"""A path as users pass it."""

T = TypeVar("T")

_MAX_NAME_BYTES, _MAX_PATH_BYTES = 255, 4095
_SEARCHED = 2000
"""Maximum number of names compared with one that does not exist."""


def is_gcs_path(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a URL of Google's store."""
    return os.fsdecode(path).startswith("gs://")


def resolve_path(path: str | bytes | os.PathLike[str]) -> Path:
    """Return an absolute local path, or a `StorePath` if it is the URL of an object store.

    Raises:
        TypeError: It is not a path.
        ValueError: The path is empty or too long, has a NUL, or is a URL of an unsupported store,
            or one that `pathlib` has mangled.
    """
    text = _text_of(path)
    if not text:
        raise ValueError("The path of a checkpoint is empty; give a directory.")
    if "\0" in text:
        raise ValueError(f"The path {text[:200]!r} has a NUL, which no path has; remove it.")
    if len(text) * 4 > _MAX_NAME_BYTES and _is_too_long(text):
        raise ValueError(
            f"The path {text[:80]!r}... has {len(text)} characters; expected names of at most "
            f"{_MAX_NAME_BYTES} bytes in a path of at most {_MAX_PATH_BYTES}. Give a shorter one."
        )
    if is_store_url(text):
        return parse_store_url(text)
    found = _URL.match(text)
    if found is None:
        return _absolute(text)
    scheme, slashes, rest = found.groups()
    if scheme == "file":
        return _absolute(rest.removeprefix("localhost") if slashes == "//" else f"/{rest}")
    if slashes == "/":
        raise ValueError(
            f"{text}: this is what pathlib.Path leaves of the URL {scheme}://{rest}; pass it as a "
            f"string, '{scheme}://{rest}'. If you mean a local directory, pass './{text}'."
        )
    raise ValueError(
        f"{text}: checkpoints on {scheme}:// are not supported; give a local "
        "directory, or a URL with s3:// or gs://."
    )


_URL = re.compile("([A-Za-z][A-Za-z0-9+.-]+):(//?)(.*)", re.DOTALL)
"""A URL, also as mangled by `pathlib.Path`; a single letter may be a drive of Windows."""


def _text_of(path: object) -> str:
    """Return a path as text.

    Raises:
        TypeError: It is not a path.
    """
    try:
        return os.fsdecode(cast(str, path))
    except TypeError:
        raise TypeError(
            f"The path of a checkpoint is a value of type {type(path).__name__}, expected a str or "
            "an os.PathLike. Give a path; it comes first, as in "
            "save(path, tree)."
        ) from None


def _absolute(text: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(text)))


def _is_too_long(path: str) -> bool:
    encoded = path.encode("utf-8", "surrogateescape")
    longest = max(map(len, encoded.split(b"/")))
    return longest > _MAX_NAME_BYTES or len(encoded) > _MAX_PATH_BYTES


def check_outside(destination: Path, source: Path) -> None:
    """Check that a destination is not inside the source.

    Raises:
        ValueError: It is. The source itself is not inside it.
    """
    pairs = [(destination, source)]
    if not isinstance(destination, StorePath) and not isinstance(source, StorePath):
        pairs.append((destination.resolve(), source.resolve()))
    if any(a != b and a.is_relative_to(b) for a, b in pairs):
        raise ValueError(f"{destination} is inside of {source}; give another destination.")


def resolve_local(path: str | os.PathLike[str]) -> Path:
    """Return an absolute local path, where object stores are not supported.

    Raises:
        ValueError: The path is empty, or a URL.
    """
    resolved = resolve_path(path)
    if isinstance(resolved, StorePath):
        raise ValueError(
            f"{resolved}: this is not read from an object store; copy it to a local directory."
        )
    return resolved


@functools.lru_cache(maxsize=8)
def as_epath(path: Path) -> Path:
    """Return a path of the class that type handlers written for Orbax expect."""
    from etils import epath  # noqa: PLC0415 - its import costs more than the rest of ours

    return epath.Path(path)


@contextlib.contextmanager
def storage_errors(path: Path | str, doing: str, advice: str) -> Generator[None]:
    """Convert errors of the operating system to ours.

    Args:
        path: The path being worked on.
        doing: The activity, `saving` for example.
        advice: What the user should do about it.

    Raises:
        StorageError: The block raised an `OSError` that is not ours; `errno` is the same.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        failure = StorageError(f"{path}: {doing} failed: {error}. {advice}")
        failure.errno = error.errno
        raise failure from error


def describe_unfinished(path: Path) -> str | None:
    """Describe an unfinished save at a path, for messages; None if there is none."""
    prefix = f"{path.name}{TEMPORARY_SUFFIX}"
    found = next((name for name in _names_near(path) if name.startswith(prefix)), None)
    if found is None:
        return None
    return f"a save of it is in progress, or did not finish ({found} is next to it)"


def describe_directory(path: Path) -> str:
    """Describe what exists at a path, for messages."""
    if not path.exists():
        near = _names_near(path)
        if unfinished := describe_unfinished(path):
            return unfinished
        return f"nothing is there (next to it: {', '.join(near)})" if near else "nothing is there"
    other = recognize(path)
    if other is not None:
        return f"it is {other.what}"
    if not path.is_dir():
        if isinstance(path, StorePath):
            return "it is an object"
        return f"it is a file of {path.stat().st_size} bytes"
    names = sorted(p.name for p in path.iterdir())
    return f"it is a directory with {shorten_list(names, 8)}"


def explain_no_checkpoint(path: Path, advice: str) -> str:
    """Explain what exists at a path without a checkpoint, and what to do.

    Args:
        path: The path.
        advice: What to do unless it is a known file of another program, as a sentence.
    """
    other = recognize(path)
    advice = other.advice if other is not None else advice
    return f"No checkpoint at {path}: {describe_directory(path)}. {advice}"


def _names_near(path: Path) -> list[str]:
    parent = path.parent
    # a store would list everything below, in a bucket perhaps millions of objects
    may_list = bool(parent.key) if isinstance(parent, StorePath) else parent.is_dir()
    if not may_list:
        return []
    names = sorted(p.name for p in parent.iterdir())
    own = [name for name in names if name.startswith(f"{path.name}{TEMPORARY_SUFFIX}")]
    alike = difflib.get_close_matches(path.name, names[:_SEARCHED], n=3)
    return list(dict.fromkeys([*own, *alike, *names]))[:8]
