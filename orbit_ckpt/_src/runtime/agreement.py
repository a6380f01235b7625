"""Let processes know before they wait for one another whether all of them will come."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b

from orbit_ckpt._src.runtime.coordination import JaxProcessGroup

_READY = "ready"
_TIMEOUT_S = 600.0


def agree(
    name: str,
    processes: Collection[int],
    failure: Exception | None = None,
    *,
    timeout_s: float = _TIMEOUT_S,
) -> None:
    """Wait until all of some processes are ready for what only all of them can do.

    Args:
        name: What they are about to do; the same on all of them.
        processes: Their numbers among JAX's, this one's too.
        failure: Why this one will not come, None if it will; it then waits for none that come.
        timeout_s: Most seconds to wait.

    Raises:
        ProcessFailedError: Another process will not come.
        ProcessTimeoutError: Another process has not said in time whether it will.
    """
    # others may meet at the same time for what is called the same
    members = blake2b(repr(sorted(processes)).encode(), digest_size=8).hexdigest()
    group = JaxProcessGroup(prefix=f"agree-{members}", primary=min(processes), active=processes)
    operation = group.join(name, timeout_s)
    try:
        if failure is None:
            operation.barrier(_READY)
            return
        operation.fail(failure, [_READY])
        if group.process.is_primary:
            operation.wait_for_others()  # they may yet come to this attempt
    finally:
        operation.leave()
