"""The processes of one JAX program, the interface of their rendezvous, and forks of a process.

`runtime.rendezvous` implements the interface over a key-value store, `runtime.jax_process_group`
finds that store.

Only the forking thread exists in a forked child: work of the other threads never finishes there,
and a lock that one of them held is never released. Objects to which that matters register here and
are reset in the child before anything else runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from msgspec import Struct
from typing_extensions import override

from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.lazy_imports import loaded_jax

_inheritables: weakref.WeakSet[Inheritable] = weakref.WeakSet()
"""Process-wide, as forking is."""

_acting: ContextVar[Process | None] = ContextVar("orbit_ckpt_process", default=None)
"""Set during a save in which not all processes of JAX take part."""


class Inheritable(Protocol):
    """An object whose state a child must not share with its parent."""

    def after_fork_in_child(self) -> None:
        """Reset it. Other threads are gone, so waiting for a lock would deadlock."""
        ...


def reset_in_child(inheritable: Inheritable) -> None:
    """Reset an object in every child forked during the object's lifetime."""
    _inheritables.add(inheritable)


def _reset_all() -> None:
    for inheritable in list(_inheritables):
        inheritable.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_reset_all)


class ForkSafeLock(Inheritable):
    """A reentrant lock that is free in a forked child, whichever thread held it in the parent."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        reset_in_child(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # in the child of a fork inside the block
            self._lock.release()

    @override
    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()


class Process(Struct, frozen=True):
    """One process of a program.

    Attributes:
        index: Its index.
        count: Number of processes.
        primary: Index of the process that does what only one may do.
    """

    index: int = 0
    count: int = 1
    primary: int = 0

    @property
    def is_primary(self) -> bool:
        """Whether it is the primary process."""
        return self.index == self.primary

    @property
    def is_alone(self) -> bool:
        """Whether it is the only process."""
        return self.count == 1


@contextlib.contextmanager
def acting_as(process: Process) -> Generator[None]:
    """Override `this_process` for the handlers that are called in the block."""
    token = _acting.set(process)
    try:
        yield
    finally:
        _acting.reset(token)


def this_process() -> Process:
    """Return this process among those that save, by default JAX's; initialises no device."""
    return _acting.get() or process_of_jax()


def process_of_jax() -> Process:
    """Return this process among JAX's; initialises no device."""
    state = distributed_state()
    if state is None or state.client is None:
        return Process()
    return Process(state.process_id, state.num_processes)


def distributed_state() -> Any:
    """Return JAX's state of its processes, without initialising devices; None without JAX."""
    if loaded_jax() is None:
        return None
    from jax._src.distributed import global_state  # noqa: PLC0415 - the only access to it

    return global_state


class Rendezvous(Protocol):
    """One joint operation of all processes, which pass the same barriers in the same order.

    Each barrier, broadcast or gather name is used once.

    Attributes:
        opening: The value with which the primary process began it.
    """

    opening: bytes

    def set_phase(self, phase: str) -> None:
        """Publish what this process is doing, for messages."""
        ...

    def barrier(self, name: str, value: bytes = b"") -> list[bytes]:
        """Wait until all processes arrive; return their values, on the primary only.

        Raises:
            ProcessFailedError: A process failed.
            ProcessTimeoutError: A process did not arrive in time.
        """
        ...

    def agree(self, name: str, value: bytes, decide: Callable[[list[bytes]], bytes]) -> bytes:
        """Wait until all processes arrive; return what the primary decides, on all.

        Args:
            name: Name of the barrier.
            value: This process's value.
            decide: Makes the decision of the values of all; called on the primary only.

        Raises:
            ProcessFailedError: A process failed.
            ProcessTimeoutError: A process did not arrive in time.
        """
        ...

    def broadcast(self, name: str, value: bytes | None, *, settled_by: str = "") -> bytes:
        """Return the primary process's value; the others wait for it.

        Args:
            name: Its name.
            value: The primary's value.
            settled_by: An earlier barrier, for which this process need not wait: once the primary
                has passed it, this one is not given up either.

        Raises:
            ProcessFailedError: A process failed.
            ProcessTimeoutError: The primary process did not arrive in time.
        """
        ...

    def gather(self, name: str, value: bytes, among: Collection[int] | None = None) -> list[bytes]:
        """Return the values of processes on the primary, nothing on the others.

        Args:
            name: Its name.
            value: This process's value.
            among: The processes that have one, None for all; the others may call this, too.

        Raises:
            ProcessFailedError: A process failed.
            ProcessTimeoutError: A process did not arrive in time.
        """
        ...

    def post(self, value: bytes) -> None:
        """Publish a value for the primary process, replacing the last one; does not wait."""
        ...

    def posted(self) -> Mapping[int, bytes]:
        """Return the values that processes have posted, by their indices."""
        ...

    def discard(self, folder: str) -> None:
        """Delete the state of passed barriers whose names begin with a folder."""
        ...

    def check(self, name: str) -> None:
        """Return at once, unless a barrier is known to have failed.

        Raises:
            ProcessFailedError: A process has failed.
            ProcessTimeoutError: A process has not arrived in time.
        """
        ...

    def fail(self, error: BaseException, barriers: Iterable[str]) -> CheckpointError | None:
        """Report to the others that this process failed.

        Args:
            error: Its error.
            barriers: Where it will not arrive.

        Returns:
            The error that all processes raise because another one failed earlier; None if this is
            the first.
        """
        ...

    def drain(self) -> None:
        """After a failure, wait briefly until the others have finished.

        Then no process mistakes a new attempt for the failed one, or still works on that. Processes
        that did not arrive are not waited for.
        """
        ...

    def finish(self) -> None:
        """End the operation, successful or not; call nothing afterwards."""
        ...


class ProcessGroup(Protocol):
    """The processes of a program, seen from one of them.

    Attributes:
        process: This process.
        names: The number of each process in messages: its index among all processes of JAX.
    """

    process: Process
    names: Sequence[int]

    def join(
        self, name: str, timeout_s: float, *, value: bytes = b"", phase: str = "beginning"
    ) -> Rendezvous:
        """Begin a joint operation of all processes.

        Args:
            name: Its name, the same on all processes.
            timeout_s: Maximum seconds to wait for others at each barrier.
            value: The primary's value for all others, see `Rendezvous.opening`.
            phase: What this process does then, for messages.

        Raises:
            ProcessTimeoutError: The primary process did not begin it in time.
        """
        ...


class _NoOthers(Rendezvous):
    opening = b""

    @override
    def set_phase(self, phase: str) -> None:
        pass

    @override
    def barrier(self, name: str, value: bytes = b"") -> list[bytes]:
        return [value]

    @override
    def agree(self, name: str, value: bytes, decide: Callable[[list[bytes]], bytes]) -> bytes:
        return decide([value])

    @override
    def broadcast(self, name: str, value: bytes | None, *, settled_by: str = "") -> bytes:
        return value or b""

    @override
    def gather(self, name: str, value: bytes, among: Collection[int] | None = None) -> list[bytes]:
        return [value]

    @override
    def post(self, value: bytes) -> None:
        pass

    @override
    def posted(self) -> Mapping[int, bytes]:
        return {}

    @override
    def discard(self, folder: str) -> None:
        pass

    @override
    def check(self, name: str) -> None:
        pass

    @override
    def fail(self, error: BaseException, barriers: Iterable[str]) -> None:
        pass

    @override
    def drain(self) -> None:
        pass

    @override
    def finish(self) -> None:
        pass


NO_OTHERS: Rendezvous = _NoOthers()
"""The rendezvous of a single process."""


class SingleProcess(ProcessGroup):
    """A group of one process; nothing waits."""

    process = Process()
    names: Sequence[int] = (0,)

    @override
    def join(
        self, name: str, timeout_s: float, *, value: bytes = b"", phase: str = "beginning"
    ) -> Rendezvous:
        return NO_OTHERS
