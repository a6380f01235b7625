"""How long the phases of a save took, as the checkpoint records it."""

from __future__ import annotations

from pathlib import Path

from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.guards import is_json_object
from orbit_ckpt._src.metadata.files import read_step
from orbit_ckpt._src.storage.integrity import open_checked


def save_times(path: Path) -> dict[str, float | None] | None:
    """Return the times of a save in seconds, None if the checkpoint records none.

    `blocked` is how long the save blocked its caller, `waited` how long it first waited for the
    previous save, None if not recorded; `total` lasts from then until the checkpoint was complete.
    """
    try:
        document = read_step(open_checked(path))
    except (CheckpointError, OSError):
        return None  # the page says elsewhere what is damaged
    began, ended = document.init_timestamp_nsecs, document.commit_timestamp_nsecs
    known = document.other.get("performance_metrics")
    found = known if is_json_object(known) else {}
    blocked = _seconds(found.get("checkpointer_blocking_duration_secs"))
    if began is None or ended is None or ended < began or blocked is None:
        return None
    waited = _seconds(found.get("wait_for_prev_duration_secs"))
    total = max((ended - began) / 1e9, blocked)
    return {"waited": waited, "blocked": blocked, "total": total}


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value >= 0 else None
