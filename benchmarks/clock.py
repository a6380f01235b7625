"""Measure what an operation costs: time, processor time, bytes read."""

from __future__ import annotations

import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_IO = Path("/proc/self/io")


@dataclass(frozen=True, slots=True)
class Cost:
    """What was spent.

    Attributes:
        seconds: Wall time.
        processor_s: Processor time of all threads, and of child processes that ended meanwhile.
        read_bytes: Bytes that system calls returned from files, where the system reports it. Reads
            of a memory map do not count.
    """

    seconds: float
    processor_s: float
    read_bytes: int | None


class Meter:
    """Measures the cost from its construction on."""

    def __init__(self) -> None:
        self._read = _bytes_read()
        self._processor_s = _processor_s()
        self._start = time.perf_counter()

    def cost(self) -> Cost:
        """Return what was spent since the construction."""
        seconds = time.perf_counter() - self._start
        processor_s = _processor_s() - self._processor_s
        read = _bytes_read()
        known = None if read is None or self._read is None else read - self._read
        return Cost(seconds, processor_s, known)


def _processor_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _bytes_read() -> int | None:
    try:
        found = re.search(r"^rchar: (\d+)", _IO.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
