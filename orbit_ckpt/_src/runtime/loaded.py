"""Access JAX only if the program has imported it; otherwise it has no settings or processes."""

from __future__ import annotations

import sys
from types import ModuleType


def loaded_jax() -> ModuleType | None:
    """Return JAX if this process has imported it, else None."""
    if "jax" not in sys.modules:
        return None
    import jax  # noqa: PLC0415 - waits for an import in progress on another thread

    return jax
