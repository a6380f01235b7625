"""Run one function on many units of work, in the processes of an executor.

The executor is the caller's: a process pool, Dask's, MPI's. It alone decides where units run
and whether a lost one runs again. Units and results are pickled; a unit describes its work fully,
so that any process can do it, and reading it twice does no harm.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Generic, TypeVar, cast

from orbit_ckpt._src.errors import WorkerLostError

UNIT_BYTES = 1 << 25
"""Bytes of a unit: 10 ms of work or more, besides which the cost of sending it is small."""

_IN_FLIGHT = 1024
"""Units submitted at once: more than workers, few enough to hold."""

U = TypeVar("U")
K = TypeVar("K")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Kept(Generic[K]):
    """Work that only this process can do, in its place among the units.

    Attributes:
        work: The work.
    """

    work: K


async def run_units(
    executor: Executor,
    function: Callable[[U], R],
    units: Iterable[U | Kept[K]],
    *,
    here: Callable[[K], Coroutine[object, object, R]] | None = None,
    finished: Callable[[U, R], object] | None = None,
) -> list[R]:
    """Run a function on units in an executor's workers; return its results in order.

    After the first error no other unit begins.

    Args:
        executor: Runs them.
        function: A function of a module, which takes one unit.
        units: The units; they are taken as workers get free.
        here: Does the work that is kept.
        finished: Called with each unit and its result as it arrives, in no particular order.

    Raises:
        WorkerLostError: The executor has lost a worker and does not repeat its work.
    """
    source = iter(units)
    results: list[R] = []
    flying: deque[asyncio.Future[R]] = deque()

    def begin(count: int) -> None:
        for unit in islice(source, count):
            if isinstance(unit, Kept):
                assert here is not None  # noqa: S101 - units are kept for it
                kept = cast(Kept[K], unit)
                flying.append(asyncio.ensure_future(here(kept.work)))
                continue
            future = asyncio.wrap_future(executor.submit(function, unit))
            flying.append(future)
            if finished is not None:
                future.add_done_callback(partial(_announce, unit, finished))

    try:
        begin(_IN_FLIGHT)
        while flying:
            results.append(await flying[0])
            flying.popleft()
            begin(1)
    except BrokenExecutor as error:
        raise WorkerLostError(
            f"A worker of {type(executor).__name__} ended before its work was done: {error} It may "
            "have run out of memory, or been killed. Nothing was damaged. Run it again with fewer "
            "workers or less memory for each, or on a Dask cluster, which repeats lost work."
        ) from error
    finally:
        for future in flying:
            future.cancel()
        await asyncio.gather(*flying, return_exceptions=True)
    return results


def _announce(unit: U, finished: Callable[[U, R], object], done: asyncio.Future[R]) -> None:
    if not done.cancelled() and done.exception() is None:
        finished(unit, done.result())
