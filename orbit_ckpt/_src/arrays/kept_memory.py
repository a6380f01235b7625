"""Memory for copies of arrays that is kept for the next save.

The system zeroes fresh memory and maps it page by page, which takes longer than the copy itself.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from typing import cast

import numpy as np

from orbit_ckpt._src.arrays.memory import HUGE_PAGE_BYTES, allocate_aligned


class KeptMemory:
    """Allocates blocks of memory, and keeps those that are no longer used for the next save.

    A block is free again once no view of it is left. All methods are thread-safe.
    """

    # Invariant: finalizers append blocks to `_returned`, without the lock: they may run in a thread
    # that holds it. Every method moves these blocks to `_free` after it has released the lock.

    def __init__(self, max_bytes: int | None = None, max_age_s: float | None = None) -> None:
        """Make one without memory.

        Args:
            max_bytes: Maximum bytes to keep; None for as much as the last save used.
            max_age_s: After how many seconds without a save to give back all of it; None for never.
        """
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._free: defaultdict[int, list[memoryview]] = defaultdict(list)
        self._returned: deque[memoryview] = deque()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._is_closed = False

    @property
    def nbytes(self) -> int:
        """Bytes being kept, unused."""
        self._sort_in()
        with self._lock:
            return self._kept_bytes()

    def allocate(self, nbytes: int) -> memoryview:
        """Allocate aligned bytes, uninitialized."""
        if nbytes < HUGE_PAGE_BYTES or self._max_bytes == 0:
            return allocate_aligned(nbytes)
        size = -(-nbytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        self._sort_in()
        with self._lock:
            blocks = self._free[size]
            block = blocks.pop() if blocks else None
        self._sort_in()
        if block is None:
            block = allocate_aligned(size)
        root = np.frombuffer(block, np.uint8)  # all views of the allocation refer to it
        weakref.finalize(root, self._return, block).atexit = False
        return memoryview(cast(bytearray, root))[:nbytes]

    def trim(self) -> None:
        """Give back what is unused, once a save has allocated all that it needs."""
        self._stop_timer()
        self._sort_in()
        with self._lock:
            self._free.clear()
        self._sort_in()

    def start_ageing(self) -> None:
        """Give back what is unused some time from now; `trim` ends that."""
        self._stop_timer()
        if self._max_age_s is None or self._is_closed or not self.nbytes:
            return
        this = weakref.ref(self)

        def give_back() -> None:
            memory = this()
            if memory is not None:
                memory.trim()

        timer = threading.Timer(self._max_age_s, give_back)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self.trim()
        else:
            self._timer = timer

    def close(self) -> None:
        """Give back all memory, what is in use as soon as it is not."""
        self._is_closed = True
        self.trim()

    def after_fork_in_child(self) -> None:
        """Give back the memory in the child; the parent still has it."""
        self._lock = threading.Lock()
        self._timer = None
        self._returned.clear()
        self._free.clear()

    def _return(self, block: memoryview) -> None:
        self._returned.append(block)
        self._sort_in()

    def _sort_in(self) -> None:
        while self._returned and self._lock.acquire(blocking=False):
            try:
                while self._returned:
                    self._keep(self._returned.popleft())
            finally:
                self._lock.release()

    def _keep(self, block: memoryview) -> None:
        fits = self._max_bytes is None or self._kept_bytes() + block.nbytes <= self._max_bytes
        if fits and not self._is_closed:
            self._free[block.nbytes].append(block)

    def _kept_bytes(self) -> int:
        return sum(size * len(blocks) for size, blocks in self._free.items())

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
