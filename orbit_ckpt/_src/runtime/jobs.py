"""Run one function on many units of work, in the processes of an executor.

The executor is the caller's: a process pool, Dask's, MPI's. It alone decides where units run
and whether a lost one runs again. Units and results are pickled; a unit describes its work fully,
so that any process can do it, and doing it twice does no harm.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar, cast

from orbit_ckpt._src.errors import CheckpointError, WorkerLostError

UNIT_BYTES = 1 << 25
"""Bytes of a unit: 10 ms of work or more, besides which the cost of sending it is small."""

_IN_FLIGHT = 1024
"""Units submitted at once: more than workers, few enough to hold."""

_ATTEMPTS = 3
"""Times that a unit is submitted when the executor or a machine fails it."""

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

    A unit that fails with an error that is none of this library's is submitted again: another
    machine may have the memory or the disk that one lacked, and Dask reports a `TypeError` of its
    own when a worker dies between its result and its reading. After the last attempt, or an error
    of this library, no other unit begins.

    Args:
        executor: Runs them.
        function: A function of a module, which takes one unit.
        units: The units; they are taken as workers get free.
        here: Does the work that is kept.
        finished: Called with each unit and its result as it arrives, in no particular order.

    Raises:
        WorkerLostError: The executor has lost a worker and does not repeat its work, or has
            cancelled the work.
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
            flying.append(asyncio.ensure_future(run(unit)))

    async def run(unit: U) -> R:
        result = await _submit(executor, function, unit)
        if finished is not None:
            finished(unit, result)
        return result

    try:
        begin(_IN_FLIGHT)
        while flying:
            results.append(await flying[0])
            flying.popleft()
            begin(1)
    finally:
        for future in flying:
            future.cancel()
        await asyncio.gather(*flying, return_exceptions=True)
    return results


async def _submit(executor: Executor, function: Callable[[U], R], unit: U) -> R:
    attempts = _ATTEMPTS
    while True:
        try:
            submitted = executor.submit(_call, function, unit, uuid.uuid4().hex)
            return await asyncio.wrap_future(submitted)
        except BrokenExecutor as error:
            raise WorkerLostError(
                f"A worker of {type(executor).__name__} ended before its work was done: {error} It "
                "may have run out of memory, or been killed. Nothing was damaged. Run it again "
                "with fewer workers or less memory for each, or on a Dask cluster, which repeats "
                "lost work."
            ) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise WorkerLostError(
                f"{type(executor).__name__} cancelled work that was given to it. It was shut down, "
                "or its connection to the workers was lost. Nothing was damaged. Run it again with "
                "an executor that stays open."
            ) from error
        except CheckpointError:
            raise
        except Exception:
            attempts -= 1
            if not attempts:
                raise


def _call(function: Callable[[U], R], unit: U, unique: str) -> R:
    """Call a function; `unique` keeps Dask from answering with what another call returned."""
    del unique
    return function(unit)
