"""Findings of a verification, as printable values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct, field

from orbit_ckpt._src.errors import CheckpointError, CorruptionError, VersionError
from orbit_ckpt._src.runtime.limiter import ByteLimiter
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.text import shorten_lines
from orbit_ckpt._src.verify.shared import CheckedChunks, SharedDamage


@dataclass(frozen=True, slots=True)
class Damage:
    """Data that differs from what was written.

    Attributes:
        checkpoint: The checkpoint.
        what: The problem.
        file: The damaged or missing file, None if unknown.
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
    """Data without a checksum, or that could not be compared with it.

    Attributes:
        directory: Its directory.
        what: What was not checked, and why.
        count: Number of such values.
    """

    directory: Path
    what: str
    count: int

    def __str__(self) -> str:
        return f"{self.directory}: {self.count} {self.what}"


@dataclass(frozen=True, slots=True)
class Unverifiable:
    """A checkpoint, or a part of one, of an unsupported version.

    Attributes:
        checkpoint: The checkpoint.
        what: The file, the version, and what to do.
    """

    checkpoint: Path
    what: str

    def __str__(self) -> str:
        return self.what


class Findings(Struct):
    """Findings in one checkpoint so far.

    Attributes:
        checkpoint: The checkpoint.
        limiter: The byte budget.
        progress: Called with the bytes checked since its last call.
        damage: Damaged data.
        unchecked: Data that could not be checked.
        unverifiable: Data of an unsupported version.
        leaves: Number of leaves.
        chunks: Number of chunks checked.
        nbytes: Number of bytes checked.
        checked: Chunks that were checked in other checkpoints, which need not be read again.
        executor: Where to read files and chunks; None for threads of this process.
    """

    checkpoint: Path
    limiter: ByteLimiter
    progress: Callable[[int], object]
    damage: list[Damage] = field(default_factory=list[Damage])
    unchecked: list[Unchecked] = field(default_factory=list[Unchecked])
    unverifiable: list[Unverifiable] = field(default_factory=list[Unverifiable])
    leaves: int = 0
    chunks: int = 0
    nbytes: int = 0
    checked: CheckedChunks = field(default_factory=CheckedChunks)
    executor: Executor | None = None
    _places: dict[tuple[str | None, str | None], int] = field(
        default_factory=dict[tuple[str | None, str | None], int]
    )
    """Positions in `damage` by file and chunk."""

    def count(self, nbytes: int) -> None:
        """Count checked bytes."""
        self.nbytes += nbytes
        self.progress(nbytes)

    def within(self, checkpoint: Path) -> Findings:
        """Return empty findings in one of several checkpoints, with the same means."""
        return Findings(
            checkpoint, self.limiter, self.progress, checked=self.checked, executor=self.executor
        )

    def record(self, error: CheckpointError, *, leaf: str | None = None) -> None:
        """Record an error; for each file only the first, unless a later one names its chunk.

        Raises:
            StorageError: A store does not answer, which is not damage.
        """
        if directory_of(self.checkpoint).is_outage(error):
            raise error
        if isinstance(error, VersionError):
            self._add_unverifiable(Unverifiable(self.checkpoint, str(error)))
            return
        if isinstance(error, CorruptionError):
            what = error.what or str(error)
            self.add(what, error.file, leaf or error.path, error.chunk)
        else:
            self.add(str(error), None, leaf)

    def add(
        self, what: str, file: str | None = None, leaf: str | None = None, chunk: str | None = None
    ) -> None:
        """Record damage, unless the same place is already recorded."""
        found = Damage(self.checkpoint, what, file, leaf, chunk)
        if file is None or not self._replaces_known(found, file):
            self._places.setdefault((file, chunk), len(self.damage))
            self.damage.append(found)

    def _replaces_known(self, found: Damage, file: str) -> bool:
        """Return whether the place is already recorded; the record that names a leaf is kept."""
        of_file = self._places.get((file, None))
        if of_file is not None and self.damage[of_file].leaf is None:
            if found.chunk is not None and file.endswith(f"/{found.chunk}"):
                self._places[file, found.chunk] = self._places.pop((file, None))
                self.damage[of_file] = found
            return True
        known = self._places.get((file, found.chunk))
        if known is not None and self.damage[known].leaf is None:
            self.damage[known] = found
        return known is not None

    def is_known(self, file: str) -> bool:
        """Return whether damage of a file is recorded that is not limited to one chunk."""
        return (file, None) in self._places

    def _add_unverifiable(self, found: Unverifiable) -> None:
        if found not in self.unverifiable:
            self.unverifiable.append(found)

    def merge(self, other: Findings) -> None:
        """Add the findings in another checkpoint."""
        self.damage += other.damage
        self.unchecked += other.unchecked
        for found in other.unverifiable:
            self._add_unverifiable(found)
        self.leaves += other.leaves
        self.chunks += other.chunks
        self.nbytes += other.nbytes

    def skip(self, directory: Path, what: str, count: int) -> None:
        """Record data that cannot be checked, if there is any."""
        if count:
            self.unchecked.append(Unchecked(directory, what, count))


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport:
    """The result of `verify`; true if all is intact. Prints as a listing.

    Attributes:
        path: The path given.
        checkpoints: The checkpoints at that path: itself, or the steps of a run.
        files: Number of their files.
        leaves: Number of leaves.
        chunks: Number of array chunks.
        bytes_checked: Bytes compared with a checksum or decoded.
        damage: All damage.
        unchecked: Data without checksums; it was decoded or parsed.
        unverifiable: Data of an unsupported version; it may be damaged.
        shared_damage: Damaged files that several of the checkpoints have, by hard links.
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
    shared_damage: Sequence[SharedDamage] = ()

    @property
    def is_intact(self) -> bool:
        """Whether all versions are supported and no damage was found."""
        return not (self.damage or self.unverifiable)

    def __bool__(self) -> bool:
        return self.is_intact

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return self.describe(most=11)

    def describe(self, *, most: int = 50) -> str:
        """Return a listing.

        Args:
            most: Maximum number of lines of every sort.
        """
        several = f" in {len(self.checkpoints)} checkpoints" if len(self.checkpoints) > 1 else ""
        counts = (
            f"{self.path}: {self.files} files{several}, leaves: {self.leaves}, "
            f"chunks: {self.chunks}, bytes checked: {self.bytes_checked}"
        )
        sections = (
            ("damaged", self.damage),
            ("damaged files that checkpoints share", self.shared_damage),
            ("cannot be verified", self.unverifiable),
            ("not checked", self.unchecked),
        )
        lines = [counts, *(["intact"] if self.is_intact else [])]
        for title, found in sections:
            lines += [f"{title}: {len(found)}"] if found else []
            lines += [f"  {line}" for line in shorten_lines(list(map(str, found)), most)]
        return "\n".join(lines)
