"""Read metadata documents that are too large for the index."""

from __future__ import annotations

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import CorruptionError, FormatError
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.value_read import read_value
from orbit_ckpt._src.tree.keypath import KeyPath, format_path

_MAX_DOCUMENT_BYTES = 1 << 26


def read_document(path: KeyPath, key: str, value: Extent) -> bytes:
    """Read a metadata document that is too large for the index.

    Raises:
        CorruptionError: It is not the one that was written.
        FormatError: It is larger than one can be.
    """
    where = format_path(path)
    if value.length > _MAX_DOCUMENT_BYTES:
        raise FormatError(
            f"{where} ({key}): a metadata document of {value.length} bytes, more than "
            f"{_MAX_DOCUMENT_BYTES}. The checkpoint is damaged."
        )
    document = read_value(value)
    if value.checksum in {None, crc32c(document)}:
        return document
    what = "it is not the document that was written"
    raise CorruptionError(
        f"{where}: {key!r} in {value.file} at byte {value.offset} is damaged: {what}. Restore an "
        "earlier checkpoint or another copy of this one.",
        path=where,
        chunk=key,
        file=value.file,
        what=what,
    )
