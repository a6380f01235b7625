"""Packs a directory into a `.tar.gz` whose bytes depend only on names and contents.

Usage: `python pack.py DIRECTORY ARCHIVE.tar.gz`
"""

from __future__ import annotations

import gzip
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Clears what differs from one machine or run to the next."""
    member.mtime = 0
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def pack(directory: Path, archive: Path) -> None:
    """Writes everything below `directory`, empty directories included, to `archive`.

    Args:
        directory: What to pack; its own name does not appear in the archive.
        archive: The file to write.
    """
    with (
        archive.open("wb") as raw,
        # The header would otherwise hold the name and time of the output.
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=9, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory).as_posix()
            tar.add(path, name, recursive=False, filter=_anonymous)


def main(arguments: Sequence[str]) -> int:
    """Runs the command line.

    Args:
        arguments: The directory and the archive.

    Returns:
        The exit status.
    """
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    pack(Path(arguments[0]), Path(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
