"""Trees as msgpack bytes in memory, under Orbax's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.flax_msgpack.memory import msgpack_restore, msgpack_serialize
    from orbit_ckpt._src.formats.flax_msgpack.write import MAX_PART_BYTES as MAX_CHUNK_SIZE

__all__ = ["MAX_CHUNK_SIZE", "msgpack_restore", "msgpack_serialize"]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "formats.flax_msgpack.memory": "msgpack_restore, msgpack_serialize",
        "formats.flax_msgpack.write": "MAX_PART_BYTES as MAX_CHUNK_SIZE",
    },
)
