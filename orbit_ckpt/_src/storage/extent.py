"""A stored value, or its place in a file."""

from __future__ import annotations

from msgspec import Struct


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
