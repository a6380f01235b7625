"""Names and paths of steps; see `orbit_ckpt.step`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt import step
from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt.step import *  # noqa: F403 - the same names

__all__: list[str] = []
__all__ += step.__all__

__getattr__, __dir__ = lazy_names(
    globals(), {"": ", ".join(f"step:{name} as {name}" for name in step.__all__)}
)
