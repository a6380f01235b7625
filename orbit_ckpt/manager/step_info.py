"""What policies know about a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One step of a run, saved or about to be; what Orbax calls `PolicyCheckpointInfo`.

    Attributes:
        step: Its number.
        time: When it was committed, with a time zone; for a step that is not, the time now.
        metrics: What was measured of it, None if nothing was.
        pinned: Whether it must not be deleted.
        temporary: Whether it is there only until the next step is durable.
        items: Names of its items.
    """

    step: int
    time: datetime
    metrics: Mapping[str, object] | None = None
    pinned: bool = False
    temporary: bool = False
    items: frozenset[str] = field(default=frozenset())
