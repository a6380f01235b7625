"""File names of checkpoints: Orbax's, T5X's and ours; and places of values in them."""

from __future__ import annotations

import re

from msgspec import Struct

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
RETENTION = "orbit_retention.json"
DIGESTS = "orbit_digests"
IN_PROGRESS = "orbit_save_in_progress"

DEFAULT_DATA_FILE_BYTES = 2**31
"""Size at which a new data file is begun."""

PART_INDEX, MERGED_RANGE = "orbit_part_index", "orbit_merged_range_"
"""Files that exist only while databases of several processes are merged."""

COMMITTED = "Checkpoint commit was successful to "
"""How Orbax begins the commit marker, of which its readers look at the name only."""

RECORDED_NOTE = f"Its files are recorded in {MANIFEST}"
"""Note in the commit marker of a directory with a manifest, which reveals its loss."""

PINNED = "PINNED"
"""A file in a step's directory with which people pin the step; T5X's name."""

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
        DIGESTS,
        IN_PROGRESS,
    }
)
"""File names that a leaf in a directory of its own must not use."""

TEMPORARY_SUFFIX = ".orbax-checkpoint-tmp"
"""Part of the name of every uncommitted directory, in Orbax and here."""

STATE_JSON, STATE_BYTES, STATE_TREE, STATE_RECORD = ".json", ".bin", ".tree", ".kind"
"""Suffixes of an object's state files; grain's files have the first, too."""

_NUMBER = re.compile(r"(?:.*[^0-9])?([0-9]+)", re.DOTALL)
_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{8}\.partial", re.DOTALL)

_STATE_FILE = re.compile(r"process_(\d+)-of-(\d+)\.(json|bin|tree|kind)")
_PROCESS_DIRECTORY = re.compile(r"ocdbt\.process_(replica_)?[A-Za-z0-9]+")


def is_temporary_name(name: str) -> bool:
    """Return whether a directory of this name holds an uncommitted save."""
    return TEMPORARY_SUFFIX in name


def number_in(name: str) -> int | None:
    """Return the number at the end of a name."""
    found = _NUMBER.fullmatch(name)
    return int(found[1]) if found else None


def partial_name(name: str, token: str) -> str:
    """Return the name of a file or directory of another format while it is written.

    Args:
        name: Its final name.
        token: Eight hexadecimal digits that distinguish attempts.
    """
    return f".{name}.{token}.partial"


def partial_of(name: str) -> str | None:
    """Return the final name of an incomplete file or directory; None for other names."""
    match = _PARTIAL.fullmatch(name)
    return None if match is None else match[1]


def replica_database(process: int) -> str:
    """Return the name of the directory with a process's database of replicated arrays."""
    return f"ocdbt.process_replica_{process}"


def process_directory(process: int | str, *, writer: str = "") -> str:
    """Return the name of the directory with the database of one process.

    Args:
        process: Its index, or another id of letters and digits.
        writer: Infix that marks databases of another writer; Orbax's have none.
    """
    return f"ocdbt.process_{writer}{process}"


def is_process_directory(name: str) -> bool:
    """Return whether a directory of this name holds the database of one process."""
    return _PROCESS_DIRECTORY.fullmatch(name) is not None


def state_stem(process: int, count: int) -> str:
    """Return the name prefix of the files with one process's state, as in grain."""
    return f"process_{process}-of-{count}"


def process_of_state(name: str) -> tuple[int, int] | None:
    """Return the process of a state file, and the process count; None for other files."""
    match = _STATE_FILE.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def join_key(name: str, suffix: str) -> str:
    """Return the storage key of a leaf's file; a bare leaf has an empty name."""
    return f"{name}/{suffix}" if name else suffix


class Extent(Struct, frozen=True, gc=False):
    """The place of a value's bytes.

    Attributes:
        file: Path of the data file; in a database, relative to its root.
        offset: Position of the first byte.
        length: Number of bytes.
        checksum: The recorded checksum, if known: the last four bytes of a value that ends in its
            own crc32c, the crc32c of any other.
    """

    file: str
    offset: int
    length: int
    checksum: int | None = None


Value = bytes | Extent
"""A stored value: its bytes if they fit into a node, else its place in a file."""
