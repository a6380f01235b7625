"""Units of a verification that any process can do; imports no JAX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.storage.chunk_check import ChunkCheck, check_chunks
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.integrity import measure_file
from orbit_ckpt._src.storage.located import LocatedChunks
from orbit_ckpt._src.storage.manifest import FileRecord


class ChunkUnit(Struct, frozen=True):
    """Chunks to read to their ends.

    Attributes:
        located: Their places.
        chunks: Their arrays, and their grid indices.
        max_bytes: Size of the blocks in which a chunk is decoded.
    """

    located: LocatedChunks
    chunks: Sequence[tuple[ArrayRead, Shape]]
    max_bytes: int


def check_unit(unit: ChunkUnit) -> ChunkCheck:
    """Read chunks to their ends."""
    return check_chunks(unit.located.open(), unit.chunks, max_bytes=unit.max_bytes)


class FileUnit(Struct, frozen=True):
    """Files to compare with a manifest.

    Attributes:
        directory: The directory of the manifest.
        names: Their names in it.
        nbytes: Their size in bytes.
    """

    directory: Path
    names: Sequence[str]
    nbytes: int


def measure_unit(unit: FileUnit) -> list[FileRecord | CheckpointError | OSError]:
    """Return size and checksum of files, or the errors of those that cannot be read."""
    found: list[FileRecord | CheckpointError | OSError] = []
    for name in unit.names:
        try:
            found.append(measure_file(unit.directory / name))
        except (CheckpointError, OSError) as error:
            found.append(error)
    return found
