"""How much memory this process holds, from the `/proc` of Linux."""

from __future__ import annotations

import ctypes
import gc
import mmap
import re
from pathlib import Path

_SELF = Path("/proc/self")


def settle() -> None:
    """Free what can be freed, so that no operation pays or gains by the one before it."""
    gc.collect()
    # Else memory that the allocator keeps would hide what the next operation needs.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def warm(nbytes: int) -> None:
    """Make the system have at least some bytes of free memory at hand, if there is as much.

    A virtual machine gives memory that it does not use back to its host, and gets it again at a
    tenth of the speed of memory. Whoever came first after a pause would pay for it.
    """
    nbytes = min(nbytes, (available() or 0) // 2)
    populate = getattr(mmap, "MAP_POPULATE", None)
    if nbytes and populate is not None:
        mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populate).close()


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
