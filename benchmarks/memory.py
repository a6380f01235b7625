"""Measure the memory of this process with Linux's `/proc`."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

import jax
import numpy as np

_SELF = Path("/proc/self")


def settle() -> None:
    """Free unused memory, so that an operation does not depend on the previous one."""
    gc.collect()
    # JAX frees the memory of deleted arrays on its next call.
    jax.device_put(np.zeros(1)).block_until_ready()
    # Otherwise memory kept by the allocator would hide the needs of the next operation.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def reset_peak() -> int | None:
    """Reset the peak of resident memory and return the current value, in bytes.

    Returns:
        None where the system does not report it.
    """
    try:
        (_SELF / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    return _status("VmRSS")


def peak() -> int | None:
    """Return the peak of resident memory since `reset_peak`, in bytes, where available."""
    return _status("VmHWM")


def available() -> int | None:
    """Return the bytes of memory that programs can still allocate, where available."""
    return _read(Path("/proc/meminfo"), "MemAvailable")


def _status(name: str) -> int | None:
    return _read(_SELF / "status", name)


def _read(path: Path, name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s*(\d+) kB", path.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
