"""Barriers, broadcasts and gathers of processes that share a key-value store.

No device takes part. Each barrier has one outcome, which is written once: by the primary process
when all have arrived, by a process that failed, or by one that timed out, whichever comes first. So
all processes see the same outcome, and waiting processes see it at once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol
from urllib.parse import quote

import msgspec.json
from msgspec import Struct
from typing_extensions import override

from orbit_ckpt._src.errors import CheckpointError, ProcessFailedError, ProcessTimeoutError
from orbit_ckpt._src.runtime.process import Process, ProcessGroup, Rendezvous

_MAX_TEXT = 100_000
"""Maximum characters of an error to publish; the service rejects large values."""

_POLL_S = 0.02
_SETTLE_S = 10.0
"""Maximum time that the primary process waits for the others after a failure."""

_IDENTIFIER = 16
"""Characters of the identifier of an attempt."""

_SLICE_S = 0.5
"""Maximum duration of one wait in native code, which delays an interrupt."""

_ASKED_PER_S = 1000
"""Limit for all processes together: requests per second."""


class KeyValueStore(Protocol):
    """A small key-value store that all processes share."""

    def put(self, key: str, value: bytes) -> None:
        """Write a value, replacing an existing one."""
        ...

    def put_new(self, key: str, value: bytes) -> bool:
        """Write a value unless one exists; return whether it was written."""
        ...

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """Wait for a value and return it, None after the timeout."""
        ...

    def list(self, folder: str) -> dict[str, bytes]:
        """Return the values below a folder, by the rest of their keys."""
        ...

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, initially 0, and return it."""
        ...

    def delete(self, key: str) -> None:
        """Remove a key, or all keys below a folder."""
        ...


class KeyValueGroup(ProcessGroup):
    """Processes that share a key-value store."""

    def __init__(
        self,
        store: KeyValueStore,
        process: Process,
        *,
        prefix: str = "",
        names: Sequence[int] | None = None,
    ) -> None:
        """Make a group.

        Args:
            store: The store they share.
            process: This process.
            prefix: Distinguishes groups that share a store.
            names: The number of each process in messages, None for its index.
        """
        self.process = process
        self._store = store
        self.names: Sequence[int] = names or range(process.count)
        # an empty part would make two slashes, which the service treats as one
        self._prefix = f"orbit_ckpt/{quote(prefix, safe='') or '-'}"

    @override
    def join(
        self, name: str, timeout_s: float, *, value: bytes = b"", phase: str = "beginning"
    ) -> Rendezvous:
        opened = f"{self._prefix}/opened/{quote(name, safe='')}"
        if self.process.is_primary:
            # the identifier is unique, so that no process mistakes another attempt for this one
            identifier = secrets.token_hex(_IDENTIFIER // 2)
            folder = f"{self._prefix}/{identifier}"
            self._store.put(f"{folder}/phase/{self.process.index}", phase.encode())
            self._store.put(opened, identifier.encode() + value)
            return self._rendezvous(name, folder, timeout_s, opened, value, phase)
        count = self.process.count
        deadline = time.monotonic() + timeout_s
        while True:
            remaining = deadline - time.monotonic()
            found = self._store.get(opened, max(0.001, min(pace(_SLICE_S, count), remaining)))
            if found is not None:
                identifier, value = found[:_IDENTIFIER].decode(), found[_IDENTIFIER:]
                folder = f"{self._prefix}/{identifier}"
                key = f"{folder}/phase/{self.process.index}"
                if self._store.put_new(key, phase.encode()):
                    return self._rendezvous(name, folder, timeout_s, opened, value, phase)
                time.sleep(pace(_POLL_S, count))  # it already joined that attempt, which failed
            if remaining <= 0:
                late = {self.names[self.process.primary]: "it has not begun this"}
                me = self.names[self.process.index]
                raise _timeout(f"{name}: process {me}", me, timeout_s, "join", late)

    def _rendezvous(
        self, name: str, folder: str, timeout_s: float, opened: str, value: bytes, phase: str
    ) -> Rendezvous:
        found = KeyValueRendezvous(
            self._store, self.process, self.names, name, folder, timeout_s, opened
        )
        found.opening, found.phase = value, phase
        return found


def pace(least_s: float, count: int) -> float:
    """Return the pause between two requests that keeps the rate of all processes low."""
    return max(least_s, count / _ASKED_PER_S)


class _Failure(Struct, frozen=True, omit_defaults=True):
    """Why a barrier failed.

    Attributes:
        process: The process that failed or timed out.
        text: Its message.
        missing: What each missing process was doing; empty if one failed.
    """

    process: int
    text: str
    missing: dict[int, str] = {}

    def error(self) -> ProcessFailedError | ProcessTimeoutError:
        if self.missing:
            return ProcessTimeoutError(self.text, process=self.process, missing=self.missing)
        return ProcessFailedError(self.text, process=self.process)


_GOOD, _BAD = b"+", b"-"


class KeyValueRendezvous(Rendezvous):
    """One attempt at a joint operation.

    Keys below its folder: `phase/<i>`, what a process is doing; `arrived/<barrier>/<i>`, its value;
    `arrived/<barrier>-count`, how many there are; `outcome/<barrier>-all`, written by the last one
    to arrive, so that the primary process neither polls nor counts; `outcome/<barrier>`, written
    once; `posted/<i>`; `finished`, the number of finished processes.
    """

    def __init__(
        self,
        store: KeyValueStore,
        process: Process,
        names: Sequence[int],
        name: str,
        folder: str,
        timeout_s: float,
        opened: str,
    ) -> None:
        self._store = store
        self._process = process
        self._names = names
        self._me = names[process.index]
        self._name = name
        self._folder = folder
        self._timeout_s = timeout_s
        self._opened = opened
        self.opening = b""
        self.phase = "beginning"
        self._has_failed = False
        self._missed: set[int] = set()

    @override
    def set_phase(self, phase: str) -> None:
        if phase == self.phase:
            return
        self.phase = phase
        self._store.put(f"{self._folder}/phase/{self._process.index}", phase.encode())

    @override
    def barrier(self, name: str, value: bytes = b"") -> list[bytes]:
        gathered: list[bytes] = []

        def keep(values: list[bytes]) -> bytes:
            gathered.extend(values)
            return b""

        self.agree(name, value, keep)
        return gathered

    @override
    def agree(self, name: str, value: bytes, decide: Callable[[list[bytes]], bytes]) -> bytes:
        gathered = self.gather(name, value)
        if not self._process.is_primary:
            return self.broadcast(name, None)
        self._store.delete(self._opened)  # all have joined
        return self.broadcast(name, decide(gathered))

    @override
    def broadcast(self, name: str, value: bytes | None, *, settled_by: str = "") -> bytes:
        if self._process.is_primary:
            return self._accept(self._decide(name, _GOOD + (value or b"")))
        key = f"{self._folder}/outcome/{name}"
        return self._accept(
            self._wait(name, lambda limit_s: self._store.get(key, limit_s), settled_by=settled_by)
        )

    @override
    def gather(self, name: str, value: bytes, among: Collection[int] | None = None) -> list[bytes]:
        members = range(self._process.count) if among is None else sorted(among)
        folder = f"{self._folder}/arrived/{name}/"
        all_came = f"{self._folder}/outcome/{name}-all"
        if self._process.index in members:
            self._store.put(f"{folder}{self._process.index}", value)
            if self._store.add(f"{self._folder}/arrived/{name}-count", 1) == len(members):
                self._store.put(all_came, _GOOD)
        if not self._process.is_primary:
            return []

        def all_or_failure(limit_s: float) -> bytes | None:
            if self._store.get(all_came, limit_s) is not None:
                return _GOOD
            return self._store.get(f"{self._folder}/outcome/{name}", 0)

        self._accept(self._wait(name, all_or_failure, members=members))
        came = self._store.list(folder)
        return [came[str(index)] for index in members]

    @override
    def post(self, value: bytes) -> None:
        self._store.put(f"{self._folder}/posted/{self._process.index}", value)

    @override
    def posted(self) -> Mapping[int, bytes]:
        found = self._store.list(f"{self._folder}/posted/")
        return {int(index): value for index, value in found.items()}

    @override
    def discard(self, folder: str) -> None:
        for part in ("arrived", "outcome"):
            self._store.delete(f"{self._folder}/{part}/{folder}")

    @override
    def check(self, name: str) -> None:
        self._accept(self._store.get(f"{self._folder}/outcome/{name}", 0) or _GOOD)

    @override
    def fail(self, error: BaseException, barriers: Iterable[str]) -> CheckpointError | None:
        if isinstance(error, ProcessFailedError | ProcessTimeoutError):
            missing = dict(error.missing) if isinstance(error, ProcessTimeoutError) else {}
            mine = _Failure(error.process, str(error), missing)
        else:
            what = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
            text = f"{self._name}: process {self._me} failed while {self.phase}: {what}"
            mine = _Failure(self._me, text)
        encoded = _BAD + msgspec.json.encode(mine)
        outcomes = [self._decide(barrier, encoded) for barrier in barriers]
        self._has_failed = True
        first = next((o for o in outcomes if o.startswith(_BAD) and o != encoded), None)
        return None if first is None else _decode_failure(first).error()

    @override
    def drain(self) -> None:
        deadline = time.monotonic() + min(self._timeout_s, _SETTLE_S)
        expected = self._process.count - len(self._missed | {self._me})
        while time.monotonic() < deadline:
            if self._store.add(f"{self._folder}/finished", 0) >= expected:
                return
            time.sleep(_POLL_S)

    @override
    def finish(self) -> None:
        if self._store.add(f"{self._folder}/finished", 1) < self._process.count:
            return
        if not self._has_failed:
            self._store.delete(self._folder)
            return
        # `phase` stays: a process that retries sees that it already joined this attempt
        for part in ("arrived", "outcome", "posted", "finished"):
            self._store.delete(f"{self._folder}/{part}")

    def _decide(self, name: str, outcome: bytes) -> bytes:
        """Write the outcome of a barrier unless it has one; return the one it has."""
        key = f"{self._folder}/outcome/{name}"
        if self._store.put_new(key, outcome):
            return outcome
        return self._store.get(key, self._timeout_s) or outcome

    def _wait(
        self,
        name: str,
        poll: Callable[[float], bytes | None],
        *,
        settled_by: str = "",
        members: Sequence[int] = (),
    ) -> bytes:
        """Poll until a value exists; return it, or the outcome of a timeout.

        Args:
            name: The barrier.
            poll: Waits for the value for some seconds.
            settled_by: See `broadcast`.
            members: The processes that have to arrive, if this one gathers.
        """
        # A barrier has at most one outcome (`put_new`), and the first one written counts for all.
        # A timeout is such an outcome: a process that gives up proposes it through `_decide` and
        # accepts what was decided, so it agrees with one that arrives at the last moment. Only a
        # process that can name a missing one proposes a timeout. If all have arrived, the last one
        # was about to say so. Polls are short, to let interrupts through.
        deadline = time.monotonic() + self._timeout_s
        slice_s = pace(_SLICE_S, self._process.count)
        while True:
            remaining = deadline - time.monotonic()
            found = poll(max(0.001, min(slice_s, remaining)))
            if found is not None:
                return found
            if remaining > 0:
                continue
            missing = self._missing(name, members)
            if not missing:
                return _GOOD
            who = f"{self._name}: process {self._me} ({self.phase})"
            late = _timeout(who, self._me, self._timeout_s, name, missing)
            failure = _Failure(late.process, str(late), dict(late.missing))
            outcome = self._decide(settled_by or name, _BAD + msgspec.json.encode(failure))
            if not settled_by or outcome.startswith(_BAD):
                return outcome
            settled_by = ""  # it is coming: wait as long again
            deadline = time.monotonic() + self._timeout_s

    def _missing(self, name: str, members: Sequence[int]) -> dict[int, str]:
        """Return the phases of the processes that have not arrived."""
        doing = self._store.list(f"{self._folder}/phase/")
        came = self._store.list(f"{self._folder}/arrived/{name}/")
        if not members and str(self._process.index) in came:
            members = range(self._process.count)
        late = [index for index in members if str(index) not in came]
        if not late and not self._process.is_primary:
            late = [self._process.primary]  # only the primary writes the outcome
        return {self._names[i]: doing.get(str(i), b"not here yet").decode() for i in late}

    def _accept(self, outcome: bytes) -> bytes:
        if outcome.startswith(_BAD):
            failure = _decode_failure(outcome)
            self._has_failed = True
            self._missed |= failure.missing.keys()
            raise failure.error()
        return outcome.removeprefix(_GOOD)


def _decode_failure(outcome: bytes) -> _Failure:
    return msgspec.json.decode(outcome.removeprefix(_BAD), type=_Failure)


def _timeout(
    who: str, process: int, timeout_s: float, barrier: str, missing: Mapping[int, str]
) -> ProcessTimeoutError:
    shown = "; ".join(f"process {i} (last: {phase})" for i, phase in list(missing.items())[:20])
    more = f" and {len(missing) - 20} more" if len(missing) > 20 else ""
    return ProcessTimeoutError(
        f"{who} waited {timeout_s:g} s at barrier '{barrier}' for {shown}{more}. Look at the logs "
        "of these processes; if they are only slow, set MultiprocessingOptions.timeout_secs.",
        process=process,
        missing=missing,
    )
