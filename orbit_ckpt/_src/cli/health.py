"""What earlier commands found in the steps of a run: damage, NaN.

`verify` and `stats` record it in a directory of the user's; they never change the run. A record
counts only as long as the step's files are those that were checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from orbit_ckpt._src.storage.durable import replace_file
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, MANIFEST, OCDBT_MANIFEST, STEP_METADATA
from orbit_ckpt._src.storage.store_path import StorePath

CACHE_VARIABLE = "ORBIT_CKPT_CACHE"
"""Environment variable with the directory of the records; nothing is recorded if it is empty."""

_IDENTIFYING = (MANIFEST, STEP_METADATA, COMMIT_MARKER, OCDBT_MANIFEST)
"""Files that every save writes anew."""


class StepHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a step.

    Attributes:
        identity: Distinguishes its files from those of a later save to the same place.
        verified: When `verify` last checked it, in seconds since 1970; None if it never did.
        damaged: Number of damaged places that it found.
        not_finite: Number of leaves with NaN or infinite values, None if they were never read.
    """

    identity: tuple[int, ...] = ()
    verified: float | None = None
    damaged: int = 0
    not_finite: int | None = None

    @property
    def state(self) -> str:
        """In a word: `damaged`, `verified`, `read` or `not read`."""
        if self.damaged:
            return "damaged"
        if self.verified is not None:
            return "verified"
        return "not read" if self.not_finite is None else "read"


class _Document(msgspec.Struct):
    path: str
    steps: dict[str, StepHealth]
    schema: int = 1


def read_health(run: Path) -> Mapping[str, StepHealth]:
    """Return what is known of the steps of a run, by the names of their directories."""
    file = _file(run)
    if file is None:
        return {}
    try:
        known = msgspec.json.decode(file.read_bytes(), type=_Document).steps
    except (OSError, msgspec.MsgspecError):
        return {}
    return {name: one for name, one in known.items() if one.identity == _identity(run / name)}


def record_verified(step: Path, damaged: int) -> None:
    """Record that a step was checked."""
    _change(step, verified=time.time(), damaged=damaged)


def record_not_finite(step: Path, count: int) -> None:
    """Record how many leaves of a step hold NaN or infinite values."""
    _change(step, not_finite=count)


def _change(step: Path, **facts: float) -> None:
    file, identity = _file(step.parent), _identity(step)
    if file is None or not identity:
        return
    known = dict(read_health(step.parent))
    before = known.get(step.name, StepHealth(identity))
    known[step.name] = msgspec.structs.replace(before, **facts)
    with contextlib.suppress(OSError):  # only a convenience
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, msgspec.json.encode(_Document(str(step.parent), known)))


def _identity(step: Path) -> tuple[int, ...]:
    """Return what identifies the files of a local step; empty for anything else."""
    for name in _IDENTIFYING:
        with contextlib.suppress(OSError):
            found = os.stat(f"{step}{os.sep}{name}")
            return (found.st_size, found.st_mtime_ns)
    return ()


def _file(run: Path) -> Path | None:
    given = os.environ.get(CACHE_VARIABLE)
    if isinstance(run, StorePath) or given == "":
        return None
    if given is None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        given = os.path.join(base, "orbit_ckpt")
    name = hashlib.sha256(os.path.realpath(run).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return Path(given) / "steps" / f"{name}.json"
