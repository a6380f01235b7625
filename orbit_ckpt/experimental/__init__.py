"""Orbax's place of its v1 API and of its managers for Google's clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt import v1
    from orbit_ckpt.experimental import emergency

__all__ = ["emergency", "v1"]

__getattr__, __dir__ = lazy_names(globals(), {"": "experimental.emergency as emergency, v1"})
