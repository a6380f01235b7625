"""What the processes of a run decide together: the primary one says, the others follow.

All processes call the same methods of a manager in the same order. Each call that depends on the
clock, on listings or on what goes on in the background is a meeting, numbered from 1. Most meetings
only wait for what the primary process says, and it waits for nobody.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

import msgspec.msgpack
from msgspec import Struct

from orbit_ckpt._src.errors import CheckpointError, ProcessFailedError
from orbit_ckpt._src.runtime.forking import ForkSafeLock, reset_in_child
from orbit_ckpt._src.runtime.process import NOBODY_ELSE, Operation, ProcessGroup

T = TypeVar("T")

_MAX_TEXT = 10_000
"""Characters of an error that others are told."""

_TIDY_EVERY = 64
"""How many meetings are forgotten at once."""


class Word(Struct, frozen=True):
    """What a process lets the primary one know.

    Attributes:
        met: How many meetings it has been to.
        is_ending: Whether it has been told that it will be stopped.
        seconds: How many seconds after that, None if unknown.
        failed: Why it comes to no further meeting, None if it does.
    """

    met: int = 0
    is_ending: bool = False
    seconds: float | None = None
    failed: str | None = None


class Meeting(Protocol):
    """One meeting, seen from a process that has come to it."""

    def collect(self, value: bytes = b"") -> list[bytes]:
        """Wait for all; return their values to the primary process, to the others none.

        Raises:
            ProcessFailedError: A process has failed.
            ProcessTimeoutError: A process has not come in time.
        """
        ...

    def share(self, say: Callable[[], T], kind: Any) -> T:
        """Return what the primary process says.

        Args:
            say: Called by the primary process only.
            kind: Type of what it returns, which msgspec can encode.

        Raises:
            CheckpointError: The processes do not call the same.
            ProcessFailedError: A process has failed.
            ProcessTimeoutError: The primary process has not come in time.
        """
        ...


class Council:
    """The processes of one run; with one process nothing is sent and nobody waits."""

    def __init__(self, group: ProcessGroup, name: str, timeout_s: float) -> None:
        """Wait until all processes have opened the run.

        Args:
            group: The processes.
            name: The run.
            timeout_s: Most seconds to wait for others at each meeting.

        Raises:
            ProcessTimeoutError: A process has not opened it in time.
        """
        self._process = group.process
        self._names = group.names
        self._name = name
        self._meeting_now = ForkSafeLock()
        self._met = 0
        self._forgotten = 0
        self._word = Word()
        self._words: list[Word] = []
        self._ends: dict[int, float | None] = {}
        self._has_left = False
        self._left_by = "close()"
        self._operation: Operation = NOBODY_ELSE
        reset_in_child(self)
        if not self.is_alone:
            self._operation = group.join(name, timeout_s)
            try:
                self._operation.barrier("opened")
            except BaseException as error:  # raised again once the others know
                self.leave(error)
                raise

    def after_fork_in_child(self) -> None:
        """Leave it to the parent to meet others: a child is none of the processes."""
        if not self.is_alone:
            self._has_left = True
            self._left_by = "a fork"
            self._operation = NOBODY_ELSE

    @property
    def is_alone(self) -> bool:
        """Whether there is only one process."""
        return self._process.is_alone

    @property
    def has_left(self) -> bool:
        """Whether this process meets nobody, or nobody any more."""
        return self.is_alone or self._has_left

    @property
    def is_primary(self) -> bool:
        """Whether this process decides."""
        return self._process.is_primary

    @property
    def names(self) -> list[int]:
        """What the processes are called, in their order."""
        return list(self._names)

    @contextlib.contextmanager
    def meeting(self, call: str) -> Generator[Meeting]:
        """Come to the next meeting; what is raised inside is told to the others.

        Args:
            call: What this process has been asked for, the same on all.
        """
        if self.has_left:
            yield _Alone()
            return
        with self._meeting_now:
            self._met += 1
            name = _meeting_name(self._met)
            try:
                self._operation.doing(f"calling {call}")
                self._listen()
                yield _Meeting(self._operation, name, call, self)
            except BaseException as error:  # raised again once the others know
                with contextlib.suppress(CheckpointError):  # the store itself is gone
                    self._operation.fail(error, [name])
                raise
            if self._met % _TIDY_EVERY == 0:
                self._tidy()

    def ask(self, call: str, say: Callable[[], T], kind: Any) -> T:
        """Return what the primary process says; it waits for nobody.

        Args:
            call: What this process has been asked for, the same on all.
            say: Called by the primary process only.
            kind: Type of what it returns, which msgspec can encode.

        Raises:
            CheckpointError: There are others, and this process comes to no further meeting.
        """
        if not self.is_alone:
            self.check_open(call)
        with self.meeting(call) as meeting:
            return meeting.share(say, kind)

    def check_open(self, call: str) -> None:
        """Check that this process may still change the run.

        Args:
            call: What it has been asked for.

        Raises:
            CheckpointError: It has left.
        """
        if self._has_left:
            where = "" if self.is_alone else ", on all of its processes"
            raise CheckpointError(
                f"{self._name}: {call} after {self._left_by}: this manager decides and changes "
                f"nothing any more. Open the run again{where}."
            )

    def say_ending(self, seconds: float | None) -> None:
        """Let the primary process know, once, that this one will be stopped.

        Args:
            seconds: In how many seconds, None if unknown.
        """
        if not self._has_left and not self._word.is_ending:
            self._leave_word(Word(self._met, is_ending=True, seconds=seconds))

    def endings(self) -> list[float | None]:
        """Return in how many seconds those processes will be stopped that have said so."""
        now = time.monotonic()
        return [None if end is None else end - now for end in self._ends.values()]

    def leave(self, error: BaseException | None = None) -> None:
        """Come to no further meeting.

        Args:
            error: Why, if it is not the end of the run; the others are told at their next meeting.
        """
        if self._has_left:
            return
        self._has_left = True
        with contextlib.suppress(CheckpointError):  # the store is gone, and all with it
            if error is not None:
                self._operation.fail(error, ["opened", _meeting_name(self._met + 1)])
                text = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
                self._leave_word(msgspec.structs.replace(self._word, failed=text))
            self._operation.leave()

    def check_same(self, mine: str, other: str, process: int) -> None:
        """Check that another process calls the same.

        Raises:
            CheckpointError: It does not.
        """
        if mine != other:
            me = self._names[self._process.index]
            raise CheckpointError(
                f"{self._name}: process {me} calls {mine} where process {self._names[process]} "
                f"calls {other}. Call the same methods of a manager, in the same order, on all "
                "processes."
            )

    @property
    def primary(self) -> int:
        """The index of the process that decides."""
        return self._process.primary

    def _leave_word(self, word: Word) -> None:
        self._word = word
        self._operation.tell(msgspec.msgpack.encode(word))

    def _listen(self) -> None:
        """Take in what the other processes have left word of; for the primary one.

        Raises:
            ProcessFailedError: One of them has left because of an error.
        """
        if not self.is_primary:
            return
        told = self._operation.told()
        self._words = [msgspec.msgpack.decode(word, type=Word) for word in told.values()]
        for index, word in zip(told, self._words, strict=True):
            if word.is_ending and index not in self._ends:
                seconds = word.seconds
                self._ends[index] = None if seconds is None else time.monotonic() + seconds
            if word.failed is not None:
                name = self._names[index]
                text = f"{self._name}: process {name} has left the run: {word.failed}"
                raise ProcessFailedError(text, process=name)

    def _tidy(self) -> None:
        """Forget the meetings that all have been to."""
        self._leave_word(msgspec.structs.replace(self._word, met=self._met))
        if not self.is_primary:
            return
        if len(self._words) == self._process.count:
            blocks = min(word.met for word in self._words) // _TIDY_EVERY
            for block in range(self._forgotten, blocks):
                self._operation.forget(f"meetings-{block}")
            self._forgotten = blocks


class _Meeting:
    """A meeting of several processes."""

    def __init__(self, operation: Operation, name: str, call: str, council: Council) -> None:
        self._operation = operation
        self._name = name
        self._call = call
        self._council = council

    def collect(self, value: bytes = b"") -> list[bytes]:
        """See `Meeting`."""
        brought = self._operation.gather(self._name, msgspec.msgpack.encode((self._call, value)))
        values: list[bytes] = []
        for index, data in enumerate(brought):
            call, theirs = msgspec.msgpack.decode(data, type=tuple[str, bytes])
            self._council.check_same(self._call, call, index)
            values.append(theirs)
        return values

    def share(self, say: Callable[[], T], kind: Any) -> T:
        """See `Meeting`."""
        if self._council.is_primary:
            said = say()
            self._operation.broadcast(self._name, msgspec.msgpack.encode((self._call, said)))
            return said
        data = self._operation.broadcast(self._name, None)
        call, heard = msgspec.msgpack.decode(data, type=tuple[str, msgspec.Raw])
        self._council.check_same(self._call, call, self._council.primary)
        return msgspec.msgpack.decode(heard, type=kind)


class _Alone:
    """A meeting of one process."""

    def collect(self, value: bytes = b"") -> list[bytes]:
        """See `Meeting`."""
        return [value]

    def share(self, say: Callable[[], T], kind: Any) -> T:
        """See `Meeting`."""
        del kind
        return say()


def _meeting_name(number: int) -> str:
    return f"meetings-{(number - 1) // _TIDY_EVERY}/{number}"
