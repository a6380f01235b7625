"""Write and read single arrays with TensorStore, under Orbax's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt import type_handlers as tensorstore_utils
    from orbit_ckpt import type_handlers as ts_utils
    from orbit_ckpt._src.storage.buckets import get_ts_context
    from orbit_ckpt._src.type_handlers.tensorstore_io import async_deserialize, async_serialize

__all__ = [
    "async_deserialize",
    "async_serialize",
    "get_ts_context",
    "tensorstore_utils",
    "ts_utils",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "": "type_handlers as tensorstore_utils, type_handlers as ts_utils",
        "storage.buckets": "get_ts_context",
        "type_handlers.tensorstore_io": "async_deserialize, async_serialize",
    },
)
