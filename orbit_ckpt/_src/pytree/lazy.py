"""Open leaves of a stored tree without reading them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
from msgspec import structs

from orbit_ckpt._src.metadata.schema import LeafRecord
from orbit_ckpt._src.pytree.stored import AS_SAVED, StoredLeaves
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.identity import OpenedDirectory
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.base import RestoreArgs
from orbit_ckpt._src.type_handlers.capabilities import LazyReader, capability
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyHostArray
from orbit_ckpt._src.type_handlers.lazy_leaf import open_leaf
from orbit_ckpt._src.type_handlers.numpy import bytes_type
from orbit_ckpt._src.type_handlers.stored import layouts_of


def lazy_leaves(
    stored: StoredLeaves, records: Sequence[LeafRecord], args: Mapping[NamePath, RestoreArgs]
) -> dict[NamePath, LazyArray]:
    """Return those leaves as lazy arrays that would be restored as arrays of JAX or numpy.

    Others are left to `read_leaves`: scalars, strings, bytes, empty containers, values that an old
    writer put into its structure file, and leaves of type handlers that are no `LazyReader`.

    Args:
        stored: The stored tree.
        records: The leaves that are wanted.
        args: How leaves are to be restored.

    Raises:
        CorruptionError: A metadata document is missing.
        TreeMismatchError: Another shape is asked for than that of a stored array.
        UnsupportedLeafError: A leaf holds PRNG keys that this JAX does not have.
    """
    directory = OpenedDirectory.now(stored.source.path, stored.source.identity)
    # lazy arrays are read on many threads, which cannot share a byte limit
    batch = structs.replace(stored.batch, reader=stored.batch.reader.unlimited())
    found: dict[NamePath, LazyArray] = {}
    _, groups = stored.split(records, args)
    for handler, group in groups:
        reader = capability(handler, LazyReader)
        if reader is None:
            continue
        kind = LazyArray if reader.lazy_type is jax.Array else LazyHostArray
        infos = [info.replace(load_batch=batch) for info in stored.infos(group)]
        for record, info, layout in zip(group, infos, layouts_of(infos), strict=True):
            arg = args.get(record.names, AS_SAVED)
            if kind is LazyArray or bytes_type(info, arg) is None:
                read = ArrayRead(info.location, info.name, layout, ())
                found[record.names] = kind(open_leaf(info, reader, arg, directory, read))
    return found
