"""How background saves take arrays from their caller.

A save holds references to arrays on the CPU where that is safe, which takes no time. But while it
holds them, a training step that donates these arrays has to copy them into fresh memory, which
takes longer than to copy them to memory kept from the last save. `auto` observes which is the case.
Arrays on accelerators are copied there as far as they fit, else sent to the host at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterable
from contextvars import ContextVar
from itertools import islice
from typing import Literal

import jax

from orbit_ckpt._src.arrays.device_copies import DeviceBudgets, device_of, is_in_device_memory
from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.kept_memory import KeptMemory
from orbit_ckpt._src.arrays.references import view_of_output

_MAX_WITNESSES = 16


SnapshotMode = Literal["auto", "reference", "copy", "device"]
"""What a background save does with arrays before it returns; see `AsyncOptions`."""


class Snapshots:
    """Takes arrays for the background saves of one checkpointer, one save after the other.

    Attributes:
        memory: The memory of the copies.
    """

    def __init__(
        self,
        mode: SnapshotMode = "auto",
        memory: KeptMemory | None = None,
        budgets: DeviceBudgets | None = None,
    ) -> None:
        """Make one that has taken nothing.

        Args:
            mode: What to do with arrays.
            memory: Memory for copies; None keeps none for the next save.
            budgets: How much memory of devices copies may take; None for what devices report.
        """
        self.memory = memory or KeptMemory(max_bytes=0)
        self._mode = mode
        self._witnesses: list[jax.Array] = []
        self._loop_donates = False
        self._budgets = budgets or DeviceBudgets()
        self._reserved: dict[jax.Device, int] = {}
        self._free: dict[jax.Device, int | None] = {}
        self._lock = threading.Lock()

    def reference(self, array: jax.Array) -> HostArray | None:
        """Return a view of an array on one CPU device to save instead of a copy.

        Returns:
            None if it must be copied, or if that costs less.
        """
        copies = self._mode == "copy" or (self._mode == "auto" and self._loop_donates)
        return None if copies else view_of_output(array)

    def reserve_on_device(self, array: jax.Array, nbytes: int) -> bool:
        """Return whether to copy an array, or a part of it, on its one device.

        `auto` does so on accelerators that report how much memory is free.
        """
        if self._mode not in {"auto", "device"}:
            return False
        device = device_of(array)
        if self._mode == "auto" and device.platform == "cpu":
            return False
        if not is_in_device_memory(array):
            return False
        with self._lock:  # several items of one save may be staged at once
            if device not in self._free:
                self._free[device] = self._budgets.free_bytes(device)
            free, reserved = self._free[device], self._reserved.get(device, 0) + nbytes
            fits = self._mode == "device" if free is None else reserved <= free
            if fits:
                self._reserved[device] = reserved
        return fits

    def observe(self, arrays: Iterable[jax.Array]) -> None:
        """Observe whether the caller donates or deletes these arrays while the save runs.

        They must be small, because this keeps them alive, and be copied: XLA does not donate arrays
        to which a save refers.
        """
        if self._mode == "auto":
            self._witnesses += islice(arrays, _MAX_WITNESSES - len(self._witnesses))

    @contextlib.contextmanager
    def taking(self) -> Generator[None]:
        """Take the arrays of the save that is staged in the block."""
        for state in (self._witnesses, self._free, self._reserved):
            state.clear()
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self.memory.trim()
            for device, nbytes in self._reserved.items():
                self._budgets.note_copied(device, nbytes)

    def end_save(self) -> None:
        """Note the end of the save whose arrays were taken last."""
        if self._witnesses:
            self._loop_donates = any(array.is_deleted() for array in self._witnesses)
            self._witnesses.clear()
        self.memory.start_ageing()

    def close(self) -> None:
        """Give back the memory."""
        self.memory.close()

    def after_fork_in_child(self) -> None:
        """Give back the memory in the child, which has no save in progress."""
        self._witnesses.clear()
        self._lock = threading.Lock()
        self.memory.after_fork_in_child()


_current: ContextVar[Snapshots | None] = ContextVar("orbit_ckpt_snapshots", default=None)


def current_snapshots() -> Snapshots:
    """Return what takes the arrays of the save being staged."""
    return _current.get() or Snapshots("copy")
