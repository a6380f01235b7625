"""Count the storage operations of this process, and let its faults come."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import select
import signal
import socket
import threading
from collections import Counter
from typing import NoReturn, TypeVar

from orbit_ckpt.testing.hook.faults import Action, Fault, Plan
from orbit_ckpt.testing.hook.operations import Call, Operation
from orbit_ckpt.testing.hook.phases import PhaseTracker

T = TypeVar("T")

_write = os.write  # before it is replaced


class Director:
    """What becomes of the storage operations of a process.

    Forked children of the process are left alone: they are other processes.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._root = os.path.realpath(plan.root)
        self._given_root = os.path.abspath(plan.root)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._count = 0
        self._selected: Counter[Fault] = Counter()
        self._written = 0
        self._log = None
        if plan.log is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._log = os.open(plan.log, flags, 0o600)
        self.phases = PhaseTracker()

    def wants(self, path: str) -> bool:
        """Return whether changes of a path are counted."""
        if os.getpid() != self._process:
            return False
        if "://" in path:  # an object in a store
            return True
        roots = (self._root, self._given_root)
        return path in roots or path.startswith(tuple(f"{root}/" for root in roots))

    def __call__(self, call: Call[T], /) -> T:
        """Perform an operation, or let a fault come instead.

        Raises:
            OSError: A fault says so.
        """
        with self._lock:
            self._count += 1
            operation = dataclasses.replace(
                call.operation, number=self._count, phase=self.phases.of(call.operation)
            )
            fault = self._fault_at(operation)
            self._record(operation, fault)
            nbytes = operation.nbytes or 0
            before, self._written = self._written, self._written + nbytes
        if fault is None:
            return call.perform()
        match fault.action:
            case Action.KILL:
                _die()
            case Action.TEAR:
                if call.write_only is not None:
                    call.write_only(nbytes // 2)
                _die()
            case Action.FAIL:
                raise OSError(fault.code, os.strerror(fault.code), operation.path)
            case Action.LIE:
                return call.pretend()
            case Action.STALL:
                self._stall(operation, fault)
                return call.perform()
            case Action.FILL:
                pass
        return self._fill(call, max(0, fault.nbytes - before))

    def _fault_at(self, operation: Operation) -> Fault | None:
        for fault in self._plan.faults:
            if not fault.selects(operation):
                continue
            if fault.action is Action.FILL:
                nbytes = operation.nbytes if operation.kind == "write" else None
                if nbytes and self._written + nbytes > fault.nbytes:
                    return fault
                continue
            self._selected[fault] += 1
            if self._selected[fault] == fault.at:
                return fault
        return None

    def _record(self, operation: Operation, fault: Fault | None) -> None:
        if self._log is None:
            return
        fields = dataclasses.asdict(operation)
        if fault is not None:
            fields["fault"] = fault.action.value
        _write(self._log, json.dumps(fields).encode() + b"\n")

    def _fill(self, call: Call[T], space: int) -> T:
        """Write what still fits.

        Raises:
            OSError: Something did not fit.
        """
        if call.write_only is None:
            return call.perform()
        if space:
            call.write_only(space)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.operation.path)

    def _stall(self, operation: Operation, fault: Fault) -> None:
        """Wait until released, or for the time of the fault."""
        if self._plan.control is None:
            select.select([], [], [], fault.seconds)
            return
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(self._plan.control)
            control.sendall(json.dumps(dataclasses.asdict(operation)).encode() + b"\n")
            select.select([control], [], [], fault.seconds)  # readable once it is closed


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")
