"""Object stores besides the built-in ones: the interface of a client, and its registration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.storage.bucket import ObjectClient, register_store

__all__ = ["ObjectClient", "register_store"]

__getattr__, __dir__ = lazy_names(globals(), {"storage.bucket": "ObjectClient, register_store"})
