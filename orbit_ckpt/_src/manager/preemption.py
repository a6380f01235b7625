"""Detect that this job is about to be stopped."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

from orbit_ckpt._src.runtime.checks import check_int, check_number
from orbit_ckpt._src.runtime.forking import reset_in_child
from orbit_ckpt._src.runtime.jax_process_group import has_preemption_service


class PreemptionWatch:
    """Records a signal that announces the end of the process.

    Watches signals once `install` has been called, and polls JAX's preemption service if it runs.
    """

    def __init__(self) -> None:
        self._received_at: float | None = None
        self._deadline_s: float | None = None
        self._previous: dict[int, Any] = {}
        self._installed = False

    def install(self, signum: int, *, deadline_s: float | None) -> None:
        """Watch a signal; the previous handler still runs, unless it would end the process.

        Args:
            signum: The signal.
            deadline_s: Seconds between the signal and the end of the process, None if unknown.

        Raises:
            RuntimeError: This is not the main thread, the only one that may handle signals.
            TypeError: `signum` is not a number.
            ValueError: The signal cannot be handled, or the deadline is negative, infinite or NaN.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "install_signal_handler must be called from the main thread: Python handles "
                "signals nowhere else."
            )
        check_int("signum", signum, least=1)
        if deadline_s is not None:
            check_number("deadline", deadline_s, can_be_zero=True)
        self._deadline_s = deadline_s
        self._installed = True
        reset_in_child(self)
        try:
            previous = signal.signal(signum, self._receive)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"signum is {signum}, which no process can handle: {error}. Give signal.SIGTERM, "
                "for example."
            ) from error
        self._previous.setdefault(signum, previous)

    def uninstall(self) -> None:
        """Restore the previous signal handlers.

        Where other code has replaced our handler in the meantime, ours only passes the signal on.
        """
        self._installed = False
        if threading.current_thread() is threading.main_thread():
            for signum, previous in list(self._previous.items()):
                if signal.getsignal(signum) == self._receive:
                    signal.signal(signum, previous)
                    del self._previous[signum]

    def after_fork_in_child(self) -> None:
        """Let signals end the child normally: it has nothing to save.

        A pool ends its workers by SIGTERM and waits for them.
        """
        self.uninstall()
        self._received_at = None

    @property
    def received(self) -> bool:
        """Whether a signal has arrived."""
        return self._received_at is not None

    def service_says(self, step: int) -> bool:
        """Query JAX's preemption service, which runs where `jax.distributed` is initialized.

        All processes have to call this, and all get the same answer.
        """
        if not has_preemption_service():
            return False
        from jax.experimental import multihost_utils  # noqa: PLC0415 - slow to import

        return multihost_utils.reached_preemption_sync_point(step)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the process ends, None if unknown."""
        if self._received_at is None or self._deadline_s is None:
            return None
        return self._received_at + self._deadline_s - time.monotonic()

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        previous = self._previous.get(signum)
        if self._installed and self._received_at is None:
            self._received_at = time.monotonic()
        if callable(previous):
            previous(signum, frame)
        elif not self._installed and previous in (signal.SIG_DFL, None):
            if previous is not None:  # else uninstalled before the signal was handled
                signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
