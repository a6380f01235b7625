"""Names of the files of a checkpoint; Orbax's, T5X's, and ours."""

from __future__ import annotations

import re

TREE_METADATA = "_METADATA"
STEP_METADATA = "_CHECKPOINT_METADATA"
SHARDINGS = "_sharding"
STRINGS = "_strings.json"
ARRAY_METADATAS = "array_metadatas"
COMMIT_MARKER = "commit_success.txt"
OCDBT_MANIFEST = "manifest.ocdbt"
OCDBT_DATA = "d"
AGGREGATE = "checkpoint"
RUN_METADATA = "metadata.json"
"""The file with which eFormer and Levanter mark a checkpoint as complete."""
ZARR2_DOCUMENT = ".zarray"
ZARR3_DOCUMENT = "zarr.json"

MANIFEST = "orbit_manifest.json"
TREE_DETAILS = "orbit_tree.json"
STEP_DETAILS = "orbit_step.json"
IN_PROGRESS = "orbit_save_in_progress"

PINNED = "PINNED"
"""A file that people put into a step's directory so that it is kept; T5X's name."""

RESERVED = frozenset(
    {
        TREE_METADATA,
        STEP_METADATA,
        SHARDINGS,
        STRINGS,
        ARRAY_METADATAS,
        COMMIT_MARKER,
        OCDBT_MANIFEST,
        MANIFEST,
        TREE_DETAILS,
        IN_PROGRESS,
    }
)
"""File names that a leaf stored in a directory of its own must not take."""

TEMPORARY_SUFFIX = ".orbax-checkpoint-tmp"
"""Part of the name of every directory that is not committed, in Orbax and here."""

STATE_JSON, STATE_BYTES, STATE_TREE, STATE_RECORD = ".json", ".bin", ".tree", ".kind"
"""Endings of what holds the state of an object: the first is that of grain's files too."""

_NUMBER = re.compile(r"(?:.*[^0-9])?([0-9]+)", re.DOTALL)
_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{8}\.partial", re.DOTALL)

_STATE_FILE = re.compile(r"process_(\d+)-of-(\d+)\.(json|bin|tree|kind)")
_PROCESS_DIRECTORY = re.compile(r"ocdbt\.process_(replica_)?[A-Za-z0-9]+")


def is_temporary_name(name: str) -> bool:
    """Whether a directory of this name holds a save that has not been committed."""
    return TEMPORARY_SUFFIX in name


def number_in(name: str) -> int | None:
    """Return the number at the end of a name."""
    found = _NUMBER.fullmatch(name)
    return int(found[1]) if found else None


def partial_name(name: str, token: str) -> str:
    """Return what a file or directory of another format is called while it is written.

    Args:
        name: Its name once it is complete.
        token: Eight hexadecimal digits that tell attempts apart.
    """
    return f".{name}.{token}.partial"


def partial_of(name: str) -> str | None:
    """Return what an incomplete file or directory would be called; None if it is none."""
    match = _PARTIAL.fullmatch(name)
    return None if match is None else match[1]


def process_directory(process: int) -> str:
    """Return the name of the directory with the database of one process."""
    return f"ocdbt.process_{process}"


def is_process_directory(name: str) -> bool:
    """Whether a directory of this name holds the database of one process."""
    return _PROCESS_DIRECTORY.fullmatch(name) is not None


def state_stem(process: int, count: int) -> str:
    """Return what the names of the files with one process's state begin with; as grain does it."""
    return f"process_{process}-of-{count}"


def process_of_state(name: str) -> tuple[int, int] | None:
    """Return whose state is in a file: the process, and of how many; None if it is no state."""
    match = _STATE_FILE.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def join_key(name: str, suffix: str) -> str:
    """Return the storage key of a file of a leaf; the name of a bare leaf is empty."""
    return f"{name}/{suffix}" if name else suffix
