"""Names of Orbax's manager that copies local checkpoints between processes; not supported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt.experimental.emergency.p2p import checkpoint_manager, options

__all__ = ["checkpoint_manager", "options"]

__getattr__, __dir__ = lazy_names(
    globals(), {"": ", ".join(f"experimental.emergency.p2p.{name} as {name}" for name in __all__)}
)
