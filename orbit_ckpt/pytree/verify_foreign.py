"""Decode every leaf of another program's checkpoint, and go on after damage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orbit_ckpt.arrays.slices import chunk_indices, whole
from orbit_ckpt.errors import CorruptionError, FormatError
from orbit_ckpt.formats.base import Format
from orbit_ckpt.metadata.files import find_string
from orbit_ckpt.pytree.verification import Damage
from orbit_ckpt.pytree.verify import Findings, check_arrays
from orbit_ckpt.storage.chunk_read import ArrayRead
from orbit_ckpt.storage.kvstore import ValueStore
from orbit_ckpt.storage.ocdbt_encode import Extent
from orbit_ckpt.tree.keypath import format_path

_GZIP = "gzip"
_SIZE_BYTES = 4
"""A gzip file ends with the size of what it holds, modulo 2**32."""


async def verify_foreign(path: Path, reader: Format, findings: Findings) -> None:
    """Decode all leaves, which finds what is cut short or missing.

    Args:
        path: The checkpoint.
        reader: Its format.
        findings: Where to put what is found.

    Raises:
        CheckpointError: It cannot be read, for another reason than damage.
    """
    try:
        source = reader.open(path)
        batch = source.load_batch()
        store = source.open_parts().store
    except (CorruptionError, FormatError) as error:
        findings.note(path, error)
        findings.skip(path, "tree, because it cannot be opened", 1)
        return
    inline, strings = source.inline, batch.strings
    records = [r for r in source.document.leaves if not r.is_empty or r.name in inline]
    findings.leaves += len(records)
    arrays = [r for r in records if r.name not in inline and find_string(strings, r.name) is None]
    reads = await check_arrays(path, batch.reader, arrays, findings, path, lambda _: False)
    _check_ends(store, reads, findings, path)
    if not source.has_checksums:
        what = f"leaves of {reader.name}, which has no checksums: decoded only"
        findings.skip(path, what, len(records))


def _check_ends(
    store: ValueStore, reads: Sequence[ArrayRead], findings: Findings, checkpoint: Path
) -> None:
    """Check that files in gzip have their ends, without which TensorStore decodes them too."""
    known = {(damage.leaf, damage.chunk) for damage in findings.damage}
    for read in reads:
        layout, leaf = read.layout, format_path(read.path)
        if layout.compression != _GZIP:
            continue
        expected = (layout.chunk_nbytes % 2 ** (8 * _SIZE_BYTES)).to_bytes(_SIZE_BYTES, "little")
        for index in chunk_indices(whole(layout.shape), layout.chunk_shape):
            key = layout.chunk_key(read.name, index)
            value = store.find(key)
            if not isinstance(value, Extent) or (leaf, key) in known:
                continue
            with open(value.file, "rb") as file:
                file.seek(value.offset + max(0, value.length - _SIZE_BYTES))
                if file.read(_SIZE_BYTES) != expected:
                    findings.add(Damage(checkpoint, "its end is missing", value.file, leaf, key))
