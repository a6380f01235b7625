"""Faults that meet a program, and the plan that says which and where."""

from __future__ import annotations

import dataclasses
import errno
import fnmatch
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orbit_ckpt.testing.hook.operations import Operation
from orbit_ckpt.testing.hook.phases import Phase

VARIABLE = "ORBIT_CKPT_CHAOS"
"""The environment variable that holds the plan of a process."""


class Action(StrEnum):
    """What a fault does.

    Attributes:
        KILL: End the process by SIGKILL before the operation.
        TEAR: Write the first half of the bytes, then end the process; kills before an operation
            that writes no bytes.
        FAIL: Raise an `OSError` instead of performing the operation.
        LIE: Report success, and do nothing.
        STALL: Wait before the operation, until released or for a while.
        FILL: From a number of bytes on, let every write fail as on a full disk.
    """

    KILL = "kill"
    TEAR = "tear"
    FAIL = "fail"
    LIE = "lie"
    STALL = "stall"
    FILL = "fill"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong once at one operation of one process.

    Attributes:
        action: What happens.
        at: At which operation, from 1, of those that the other fields select.
        phase: Select operations of this phase only.
        kind: Select operations of this kind only.
        path: Select paths that match this pattern only: `*/manifest.ocdbt`.
        code: Of a failure, the error number.
        seconds: Of a stall, how long at most.
        nbytes: Of a full disk, how many bytes still fit.
    """

    action: Action
    at: int = 1
    phase: Phase | None = None
    kind: str | None = None
    path: str | None = None
    code: int = errno.EIO
    seconds: float | None = None
    nbytes: int = 0

    def __post_init__(self) -> None:
        if self.at < 1:
            raise ValueError(f"at={self.at}: operations are counted from 1.")

    def selects(self, operation: Operation) -> bool:
        """Return whether an operation counts for this fault."""
        return (
            self.phase in (None, operation.phase)
            and self.kind in (None, operation.kind)
            and (self.path is None or fnmatch.fnmatchcase(operation.path, self.path))
        )

    def __str__(self) -> str:
        selected = [
            text
            for text in (
                self.kind and f"{self.kind} operation",
                self.phase and f"in phase {self.phase.value!r}",
                self.path and f"on {self.path}",
            )
            if text
        ]
        return f"{self.action.value} at {self.at} {' '.join(selected)}".rstrip()


@dataclass(frozen=True, slots=True)
class Plan:
    """What one process is to meet with.

    Attributes:
        root: Only changes below this directory count, and those in object stores.
        faults: What goes wrong.
        log: A file to append every operation to, as lines of JSON.
        control: A Unix socket that a stalled process asks for its release.
    """

    root: str
    faults: tuple[Fault, ...] = ()
    log: str | None = None
    control: str | None = None

    def encode(self) -> str:
        """Return the value of `VARIABLE`; defaults are left out."""
        return json.dumps(
            {
                **_given(self),
                "faults": [
                    {**_given(fault), "action": fault.action.value} for fault in self.faults
                ],
            }
        )

    @classmethod
    def decode(cls, text: str) -> Plan:
        """Return the plan that a value of `VARIABLE` holds."""
        fields: dict[str, Any] = json.loads(text)
        given: list[dict[str, Any]] = fields.pop("faults", [])
        return cls(**fields, faults=tuple(map(_fault, given)))


def _fault(fields: dict[str, Any]) -> Fault:
    phase = fields.pop("phase", None)
    return Fault(
        Action(fields.pop("action")), phase=None if phase is None else Phase(phase), **fields
    )


def _given(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    return {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if getattr(record, field.name) != field.default and field.name != "faults"
    }
