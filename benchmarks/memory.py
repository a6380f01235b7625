"""How much memory this process holds, from the `/proc` of Linux."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

import jax
import numpy as np

_SELF = Path("/proc/self")


def settle() -> None:
    """Free what can be freed, so that no operation pays or gains by the one before it."""
    gc.collect()
    # JAX drops what belonged to its deleted arrays when it is called the next time.
    jax.device_put(np.zeros(1)).block_until_ready()
    # Else memory that the allocator keeps would hide what the next operation needs.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def reset_peak() -> int | None:
    """Forget the highest resident memory and return the present one, in bytes.

    Returns:
        None where the system does not tell.
    """
    try:
        (_SELF / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    return _status("VmRSS")


def peak() -> int | None:
    """Return the highest resident memory since `reset_peak`, in bytes, where the system tells."""
    return _status("VmHWM")


def available() -> int | None:
    """Return the bytes of memory that programs can still take, where the system tells."""
    return _read(Path("/proc/meminfo"), "MemAvailable")


def _status(name: str) -> int | None:
    return _read(_SELF / "status", name)


def _read(path: Path, name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s*(\d+) kB", path.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
