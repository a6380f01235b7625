"""Measure the memory of this process with Linux's `/proc`, and make memory ready for use."""

from __future__ import annotations

import ctypes
import gc
import mmap
import re
from pathlib import Path

import jax
import numpy as np

_SELF = Path("/proc/self")
_PAGE = 4096
_SHARE_OF_FREE = 0.8


def settle() -> None:
    """Free unused memory, so that an operation does not depend on the previous one."""
    gc.collect()
    # JAX frees the memory of deleted arrays on its next call.
    jax.device_put(np.zeros(1)).block_until_ready()
    # Otherwise memory kept by the allocator would hide the needs of the next operation.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def touch(nbytes: int) -> None:
    """Write to `nbytes` of fresh memory and return it to the system.

    A virtual machine that returns unused memory to its host gets it back at a tenth of the usual
    speed. The system hands out what was freed last, so the next operation gets memory that the
    host has just provided. At most four fifths of the free memory are touched, which leaves the
    page cache alone. The memory is mapped and unmapped as a whole: neither the allocator nor the
    resident memory of this process changes.
    """
    free = _read(Path("/proc/meminfo"), "MemFree")
    nbytes = min(nbytes, int(free * _SHARE_OF_FREE)) if free is not None else nbytes
    if nbytes < _PAGE:
        return
    with mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
        if hasattr(mmap, "MADV_HUGEPAGE"):  # eight times as fast as small pages
            fresh.madvise(mmap.MADV_HUGEPAGE)
        pages = np.frombuffer(fresh, np.uint8)
        pages[::_PAGE] = 1
        del pages  # a map with a view of it cannot be closed


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
