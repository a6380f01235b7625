"""The processes of one JAX program, and what they do together.

`runtime.meetings` says how they meet, `runtime.coordination` where.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from jax._src.distributed import global_state  # tells without initialising devices
from msgspec import Struct

from orbit_ckpt._src.errors import CheckpointError


class Process(Struct, frozen=True):
    """A process among those of one program.

    Attributes:
        index: Which one it is.
        count: How many there are.
        primary: Which one does what only one may do.
    """

    index: int = 0
    count: int = 1
    primary: int = 0

    @property
    def is_primary(self) -> bool:
        """Whether it is the one that does what only one may do."""
        return self.index == self.primary

    @property
    def is_alone(self) -> bool:
        """Whether there is no other."""
        return self.count == 1


_acting: ContextVar[Process | None] = ContextVar("orbit_ckpt_process", default=None)
"""Set while a save goes on that not all processes of JAX take part in."""


@contextlib.contextmanager
def acting_as(process: Process) -> Generator[None]:
    """Have `this_process` return another one, for handlers, which are not told who saves."""
    token = _acting.set(process)
    try:
        yield
    finally:
        _acting.reset(token)


def this_process() -> Process:
    """Return which process this is among those that save, JAX's; initialises no device."""
    return _acting.get() or process_of_jax()


def process_of_jax() -> Process:
    """Return which process of JAX's this is; initialises no device."""
    state: Any = global_state
    if state.client is None:
        return Process()
    return Process(state.process_id, state.num_processes)


class Operation(Protocol):
    """Something that all processes do together, in one order of meetings."""

    def doing(self, phase: str) -> None:
        """Tell the others what this process does, for messages about it."""
        ...

    def barrier(self, name: str, value: bytes = b"") -> list[bytes]:
        """Wait until all processes have come; return their values to the primary one only.

        Raises:
            ProcessFailedError: A process has failed.
            ProcessTimeoutError: A process has not come in time.
        """
        ...

    def broadcast(self, name: str, value: bytes | None) -> bytes:
        """Return what the primary process gives; the others wait for it.

        Raises:
            ProcessFailedError: A process has failed.
            ProcessTimeoutError: The primary process has not come in time.
        """
        ...

    def gather(self, name: str, value: bytes) -> list[bytes]:
        """Return the values of all processes to the primary one, to the others none.

        Raises:
            ProcessFailedError: A process has failed.
            ProcessTimeoutError: A process has not come in time.
        """
        ...

    def tell(self, value: bytes) -> None:
        """Leave word for the primary process, instead of what was left before; nobody waits."""
        ...

    def told(self) -> Mapping[int, bytes]:
        """Return what processes have left word of."""
        ...

    def forget(self, folder: str) -> None:
        """Forget the meetings whose names begin with a folder; none of them may go on."""
        ...

    def check(self, name: str) -> None:
        """Return at once, unless it is known that the processes will not meet.

        Raises:
            ProcessFailedError: A process has failed.
            ProcessTimeoutError: A process has not come in time.
        """
        ...

    def fail(self, error: BaseException, meetings: Iterable[str]) -> CheckpointError | None:
        """Tell the others that this process has failed.

        Args:
            error: What it has failed with.
            meetings: Where it will not come any more.

        Returns:
            What all raise because another one had failed before; None if this was the first.
        """
        ...

    def wait_for_others(self) -> None:
        """After a failure, wait for a while until the others have left; not for the missing.

        Then nobody takes a new attempt for the one that has failed, nor works on it any more.
        """
        ...

    def leave(self) -> None:
        """Be done with it, well or not; nothing of it may be called any more."""
        ...


class ProcessGroup(Protocol):
    """The processes of a program, seen from one of them."""

    @property
    def process(self) -> Process:
        """Which one this is."""
        ...

    @property
    def names(self) -> Sequence[int]:
        """What each is called in messages: its number among all processes of JAX."""
        ...

    def join(self, name: str, timeout_s: float) -> Operation:
        """Begin something together.

        Args:
            name: What; the same on all processes.
            timeout_s: Most seconds to wait for others at each meeting.

        Raises:
            ProcessTimeoutError: The primary process has not begun it in time.
        """
        ...


class SingleProcess:
    """A process without others; nothing waits."""

    process = Process()
    names: Sequence[int] = (0,)

    def join(self, name: str, timeout_s: float) -> Operation:
        """See `ProcessGroup`."""
        del name, timeout_s
        return NOBODY_ELSE


class _Alone:
    def doing(self, phase: str) -> None:
        pass

    def barrier(self, name: str, value: bytes = b"") -> list[bytes]:
        return self.gather(name, value)

    def broadcast(self, name: str, value: bytes | None) -> bytes:
        del name
        return value or b""

    def gather(self, name: str, value: bytes) -> list[bytes]:
        del name
        return [value]

    def tell(self, value: bytes) -> None:
        pass

    def told(self) -> Mapping[int, bytes]:
        return {}

    def forget(self, folder: str) -> None:
        pass

    def check(self, name: str) -> None:
        pass

    def fail(self, error: BaseException, meetings: Iterable[str]) -> None:
        pass

    def wait_for_others(self) -> None:
        pass

    def leave(self) -> None:
        pass


NOBODY_ELSE: Operation = _Alone()
"""What a process does that meets no other."""
