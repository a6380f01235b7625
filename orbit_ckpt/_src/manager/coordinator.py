"""Decisions the processes of a run share: the primary decides and broadcasts.

All processes call the same methods of a manager in the same order. Each call that depends on the
clock, on a listing or on background work is a round, numbered from 1. In most rounds the other
processes only wait for the primary's decision; the primary waits for nobody. Whether the job is
about to be stopped is one of these decisions.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, TypeVar

import msgspec.msgpack
from msgspec import Struct

from orbit_ckpt._src.checkpointer.telemetry import record_preemption
from orbit_ckpt._src.errors import CheckpointError, ProcessFailedError
from orbit_ckpt._src.runtime.checks import check_int, check_number
from orbit_ckpt._src.runtime.jax_process_group import has_preemption_service
from orbit_ckpt._src.runtime.process import (
    NO_OTHERS,
    ForkSafeLock,
    Process,
    ProcessGroup,
    Rendezvous,
    reset_in_child,
)

T = TypeVar("T")

_MAX_TEXT = 10_000
"""Characters of an error that is sent to the other processes."""

_DISCARD_EVERY = 64
"""How many rounds are discarded at once."""


class PreemptionWatch:
    """Records a signal that announces the end of the process.

    Watches signals once `install` has been called, and polls JAX's preemption service if it runs.
    """

    def __init__(self) -> None:
        self._received_at: float | None = None
        self._deadline_s: float | None = None
        self._previous: dict[int, Any] = {}
        self._installed = False
        self._reported = False

    def report(self, is_ending: bool) -> None:
        """Report to listeners of `jax.monitoring` that the job is about to end, if so, once."""
        if is_ending and not self._reported:
            self._reported = True
            record_preemption()

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


class ProcessStatus(Struct, frozen=True):
    """The status that a process posts for the primary.

    Attributes:
        rounds: Number of rounds it has joined.
        is_ending: Whether it has received a termination signal.
        seconds: Seconds between the signal and its end, None if unknown.
        failed: Why it joins no further round, None while it does.
    """

    rounds: int = 0
    is_ending: bool = False
    seconds: float | None = None
    failed: str | None = None


class RunCoordinator:
    """The processes of one run; a single process sends nothing and never waits."""

    def __init__(self, group: ProcessGroup, name: str, timeout_s: float) -> None:
        """Wait until all processes have opened the run.

        Args:
            group: The processes.
            name: The run.
            timeout_s: Longest wait for other processes in each round.

        Raises:
            ProcessTimeoutError: A process has not opened the run in time.
        """
        self._process = group.process
        self._names = group.names
        self._name = name
        self._in_round = ForkSafeLock()
        self._rounds = 0
        self._discarded = 0
        self._status = ProcessStatus()
        self._statuses: list[ProcessStatus] = []
        self._ends: dict[int, float | None] = {}
        self._has_left = False
        self._left_by = "close()"
        self._rendezvous: Rendezvous = NO_OTHERS
        reset_in_child(self)
        try:
            self._rendezvous = group.join(name, timeout_s)
            self._rendezvous.barrier("opened")
        except BaseException as error:  # raised again once the other processes know
            self.leave(error)
            raise

    def after_fork_in_child(self) -> None:
        """Leave: a forked child does not belong to the run."""
        if not self.is_alone:
            self._has_left = True
            self._left_by = "a fork"
            self._rendezvous = NO_OTHERS

    @property
    def is_alone(self) -> bool:
        """Whether there is only one process."""
        return self._process.is_alone

    @property
    def has_left(self) -> bool:
        """Whether this process no longer waits for others, or never did."""
        return self.is_alone or self._has_left

    @property
    def is_primary(self) -> bool:
        """Whether this process decides."""
        return self._process.is_primary

    @property
    def names(self) -> list[int]:
        """The process numbers used in messages, in order."""
        return list(self._names)

    @contextlib.contextmanager
    def round(self, call: str) -> Generator[Round]:
        """Join the next round; an exception inside is reported to the other processes.

        Args:
            call: The method called, the same on all processes.
        """
        if self.has_left:
            yield Round(NO_OTHERS, Process(), "", call, self._check_same_call)
            return
        with self._in_round:
            self._rounds += 1
            name = _round_name(self._rounds)
            try:
                self._rendezvous.set_phase(f"calling {call}")
                self._read_statuses()
                yield Round(self._rendezvous, self._process, name, call, self._check_same_call)
            except BaseException as error:  # raised again once the other processes know
                with contextlib.suppress(CheckpointError):  # the store itself is gone
                    self._rendezvous.fail(error, [name])
                raise
            if self._rounds % _DISCARD_EVERY == 0:
                self._discard_rounds()

    def decide(self, call: str, make: Callable[[], T], kind: Any) -> T:
        """Return the primary's decision without making the primary wait.

        Args:
            call: The method called, the same on all processes.
            make: Makes the decision; called on the primary only.
            kind: Type of the decision, for msgspec.

        Raises:
            CheckpointError: This is one of several processes, and it has left.
        """
        if not self.is_alone:
            self.check_open(call)
        with self.round(call) as current:
            return current.broadcast(make, kind)

    def check_open(self, call: str) -> None:
        """Check that this process may still change the run.

        Raises:
            CheckpointError: It has left.
        """
        if self._has_left:
            where = "" if self.is_alone else ", on all of its processes"
            raise CheckpointError(
                f"{self._name}: {call} after {self._left_by}: this manager decides and changes "
                f"nothing any more. Open the run again{where}."
            )

    def post_ending(self, seconds: float | None) -> None:
        """Announce to the primary, once, that this process is about to end.

        Args:
            seconds: Seconds left, None if unknown.
        """
        if not self._has_left and not self._status.is_ending:
            self._post(ProcessStatus(self._rounds, is_ending=True, seconds=seconds))

    def endings(self) -> list[float | None]:
        """Return the seconds left to each process that has announced its end; None if unknown."""
        now = time.monotonic()
        return [None if end is None else end - now for end in self._ends.values()]

    def leave(self, error: BaseException | None = None) -> None:
        """Join no further round.

        Args:
            error: Why, if the run does not simply end; the others raise it in their next round.
        """
        if self._has_left:
            return
        self._has_left = True
        with contextlib.suppress(CheckpointError):  # the store is gone, and the run with it
            if error is not None:
                self._rendezvous.fail(error, ["opened", _round_name(self._rounds + 1)])
                text = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
                self._post(msgspec.structs.replace(self._status, failed=text))
            self._rendezvous.finish()

    def _check_same_call(self, mine: str, other: str, process: int) -> None:
        """Check that another process calls the same method.

        Raises:
            CheckpointError: It calls another one.
        """
        if mine != other:
            me = self._names[self._process.index]
            raise CheckpointError(
                f"{self._name}: process {me} calls {mine} where process {self._names[process]} "
                f"calls {other}. Call the same methods of a manager, in the same order, on all "
                "processes."
            )

    def _post(self, status: ProcessStatus) -> None:
        self._status = status
        self._rendezvous.post(msgspec.msgpack.encode(status))

    def _read_statuses(self) -> None:
        """Read the statuses of the other processes, on the primary.

        Raises:
            ProcessFailedError: A process has left because of an error.
        """
        if not self.is_primary:
            return
        posted = self._rendezvous.posted()
        self._statuses = [msgspec.msgpack.decode(p, type=ProcessStatus) for p in posted.values()]
        for index, status in zip(posted, self._statuses, strict=True):
            if status.is_ending and index not in self._ends:
                seconds = status.seconds
                self._ends[index] = None if seconds is None else time.monotonic() + seconds
            if status.failed is not None:
                name = self._names[index]
                text = f"{self._name}: process {name} has left the run: {status.failed}"
                raise ProcessFailedError(text, process=name)

    def _discard_rounds(self) -> None:
        """Delete the keys of rounds that all processes have joined."""
        self._post(msgspec.structs.replace(self._status, rounds=self._rounds))
        if self.is_primary and len(self._statuses) == self._process.count:
            blocks = min(status.rounds for status in self._statuses) // _DISCARD_EVERY
            for block in range(self._discarded, blocks):
                self._rendezvous.discard(f"rounds-{block}")
            self._discarded = blocks


class Round:
    """One round, seen by a process that has joined it."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        process: Process,
        name: str,
        call: str,
        check_same_call: Callable[[str, str, int], None],
    ) -> None:
        self._rendezvous = rendezvous
        self._process = process
        self._name = name
        self._call = call
        self._check_same_call = check_same_call

    def gather(self, value: bytes = b"") -> list[bytes]:
        """Wait for all processes; return their values on the primary, an empty list elsewhere.

        Raises:
            CheckpointError: The processes call different methods.
            ProcessFailedError: A process has failed.
            ProcessTimeoutError: A process has not joined in time.
        """
        gathered = self._rendezvous.gather(self._name, msgspec.msgpack.encode((self._call, value)))
        values: list[bytes] = []
        for index, data in enumerate(gathered):
            call, theirs = msgspec.msgpack.decode(data, type=tuple[str, bytes])
            self._check_same_call(self._call, call, index)
            values.append(theirs)
        return values

    def broadcast(self, make: Callable[[], T], kind: Any) -> T:
        """Return the value that the primary makes.

        Args:
            make: Called on the primary only.
            kind: Type of its result, for msgspec.

        Raises:
            CheckpointError: The processes call different methods.
            ProcessFailedError: A process has failed.
            ProcessTimeoutError: The primary has not joined in time.
        """
        if self._process.is_primary:
            made = make()
            if not self._process.is_alone:
                self._rendezvous.broadcast(self._name, msgspec.msgpack.encode((self._call, made)))
            return made
        data = self._rendezvous.broadcast(self._name, None)
        call, value = msgspec.msgpack.decode(data, type=tuple[str, msgspec.Raw])
        self._check_same_call(self._call, call, self._process.primary)
        return msgspec.msgpack.decode(value, type=kind)


def _round_name(number: int) -> str:
    return f"rounds-{(number - 1) // _DISCARD_EVERY}/{number}"
