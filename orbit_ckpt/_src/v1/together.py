"""Run one step of work on the primary process, and let the others wait for it."""

from __future__ import annotations

from collections.abc import Callable

from orbit_ckpt._src.v1.context import Context

_READY = "ready"
_DONE = "done"


def run_on_primary(name: str, context: Context, work: Callable[[], object]) -> None:
    """Call a function on the primary process; return on every process once it has ended.

    Args:
        name: Describes the work, alike on all processes.
        context: Says which processes take part.
        work: What to do.

    Raises:
        ProcessFailedError: The work has failed on the primary process.
        ProcessTimeoutError: A process has not joined in time.
    """
    options = context.session().multiprocessing
    group = options.find_group()
    rendezvous = group.join(name, options.timeout_s)
    try:
        rendezvous.barrier(_READY)  # no process still looks at what the work changes
        if group.process.is_primary:
            work()
        rendezvous.barrier(_DONE)
    except BaseException as error:  # raised again once the other processes know
        rendezvous.fail(error, [_READY, _DONE])
        raise
    finally:
        rendezvous.finish()
