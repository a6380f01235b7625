"""The steps of a run as the page shows them, and the bytes that they share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orbit_ckpt._src.cli.keeping import Keeping, kept_by
from orbit_ckpt._src.cli.listing import step_fields
from orbit_ckpt._src.cli.runs import ListedStep, list_run
from orbit_ckpt._src.cli.sharing import shares_of
from orbit_ckpt._src.errors import CheckpointNotFoundError
from orbit_ckpt._src.formats.locate import locate


def list_steps(root: Path) -> list[ListedStep]:
    """Return the steps of a run, ascending; none for a single checkpoint, or nothing."""
    try:
        return list_run(locate(root)) or []
    except CheckpointNotFoundError:
        return []  # reported when it is opened


def describe_steps(entries: Sequence[ListedStep], keeping: Keeping) -> list[dict[str, object]]:
    """Return the fields of every step: those of `ls --json`, its name, and bytes that it shares."""
    kept = kept_by(entries, keeping) if entries else None
    shares = shares_of(entries) or [None] * len(entries)  # None in a store
    return [
        step_fields(entry)
        | {
            "name": entry.name,
            "metrics": entry.info.metrics or {},
            "kept_by": None if kept is None else kept[entry.info.step],
            "shared": 0 if share is None else share.shared,
            "new": None if share is None else share.new,
        }
        for entry, share in zip(entries, shares, strict=True)
    ]


def disk_bytes(entries: Sequence[ListedStep]) -> int | None:
    """Return the bytes that all steps take together; None without steps, or in a store."""
    shares = shares_of(entries) if entries else None
    return None if shares is None else sum(share.new for share in shares)
