"""What a check of checkpoints has found, as values that can be printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it was written.

    Attributes:
        checkpoint: The checkpoint.
        what: What is wrong.
        file: The file that is damaged or missing, None if it is not known which.
        leaf: Name of the leaf that cannot be restored, None if it is not one leaf.
        chunk: Storage key of the damaged chunk, None if it is not one chunk.
    """

    checkpoint: Path
    what: str
    file: str | None = None
    leaf: str | None = None
    chunk: str | None = None

    def __str__(self) -> str:
        place = [] if self.leaf is None else [f"leaf {self.leaf}"]
        place += [] if self.chunk is None else [f"chunk {self.chunk}"]
        place += [self.file] if self.file is not None else []
        return f"{', '.join(place) or self.checkpoint}: {self.what}"


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Something of which nothing tells whether it is as it was written.

    Attributes:
        directory: Where.
        what: What, and why.
        count: How many.
    """

    directory: Path
    what: str
    count: int

    def __str__(self) -> str:
        return f"{self.directory}: {self.count} {self.what}"


@dataclass(frozen=True, slots=True)
class Unverifiable:
    """A checkpoint, or a part of one, that is of a version which is not read here.

    Attributes:
        checkpoint: The checkpoint.
        what: The file, the version, and what to do.
    """

    checkpoint: Path
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` has found; true if all is intact. Printed, it is a listing.

    Attributes:
        path: What was checked.
        checkpoints: The checkpoints there: the path itself, or the steps of a run.
        files: How many files they have.
        leaves: How many leaves.
        chunks: How many chunks of arrays.
        bytes_checked: How many bytes were compared with a checksum or decoded.
        damage: Everything that is damaged.
        unchecked: What has no checksums. It was decoded or parsed all the same.
        unverifiable: What is of a version that is not read here; it may be damaged or not.
    """

    path: Path
    checkpoints: Sequence[Path]
    files: int
    leaves: int
    chunks: int
    bytes_checked: int
    damage: Sequence[Damage]
    unchecked: Sequence[Unchecked]
    unverifiable: Sequence[Unverifiable] = ()

    @property
    def is_intact(self) -> bool:
        """Whether all is of known versions and nothing is damaged, as far as could be checked."""
        return not (self.damage or self.unverifiable)

    def __bool__(self) -> bool:
        return self.is_intact

    def __str__(self) -> str:
        several = f" in {len(self.checkpoints)} checkpoints" if len(self.checkpoints) > 1 else ""
        counts = (
            f"{self.path}: {self.files} files{several}, leaves: {self.leaves}, "
            f"chunks: {self.chunks}, bytes checked: {self.bytes_checked}"
        )
        sections = (
            ("damaged", self.damage),
            ("cannot be verified", self.unverifiable),
            ("not checked", self.unchecked),
        )
        lines = [counts, *(["intact"] if self.is_intact else [])]
        for title, found in sections:
            lines += [f"{title}: {len(found)}"] if found else []
            lines += [f"  {one}" for one in found[:_SHOWN]]
            lines += [f"  ... and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        return "\n".join(lines)
