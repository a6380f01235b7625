"""The steps of a run as the page shows them, and the bytes that they share."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from orbit_ckpt._src.cli.listing import step_fields
from orbit_ckpt._src.cli.runs import Keeping, ListedStep, list_run
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
    is_given = bool(entries) and keeping.is_given
    kept = keeping.rules([entry.info for entry in entries]) if is_given else None
    shared = shared_bytes([entry.path for entry in entries])
    return [
        step_fields(entry)
        | {
            "name": entry.name,
            "metrics": entry.info.metrics or {},
            "kept_by": None if kept is None else kept[entry.info.step],
            "shared": shared.get(entry.path, 0),
        }
        for entry in entries
    ]


def shared_bytes(paths: Sequence[Path]) -> dict[Path, int]:
    """Return for each step the bytes of files that another step has too, as a hard link.

    Steps in a store, and those that share nothing, are left out.
    """
    files: defaultdict[tuple[int, int], set[Path]] = defaultdict(set)
    sizes: dict[tuple[int, int], int] = {}
    for path in paths:
        for directory, _, names in os.walk(path):
            for name in names:
                try:
                    status = os.stat(os.path.join(directory, name), follow_symlinks=False)
                except FileNotFoundError:
                    continue  # the step is being deleted
                if status.st_nlink > 1:
                    identity = status.st_dev, status.st_ino
                    files[identity].add(path)
                    sizes[identity] = status.st_size
    found: defaultdict[Path, int] = defaultdict(int)
    for identity, holders in files.items():
        if len(holders) > 1:
            for path in holders:
                found[path] += sizes[identity]
    return dict(found)
