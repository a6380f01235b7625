from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager

import pytest

from orbit_ckpt._src.runtime.limiter import ByteLimiter


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


class Worker:
    """Holds bytes of a limiter from when it is admitted until it is told to finish."""

    def __init__(self, limiter: ByteLimiter, nbytes: int) -> None:
        self.admitted = False
        self._finish = asyncio.Event()
        self._task = asyncio.create_task(self._run(limiter, nbytes))

    async def _run(self, limiter: ByteLimiter, nbytes: int) -> None:
        async with limiter.reserve(nbytes):
            self.admitted = True
            await self._finish.wait()

    async def finish(self) -> None:
        self._finish.set()
        await self._task
        await settle()

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await settle()


async def start(limiter: ByteLimiter, *sizes: int) -> list[Worker]:
    workers = [Worker(limiter, size) for size in sizes]
    await settle()
    return workers


@asynccontextmanager
async def workers(max_bytes: int | None, *sizes: int) -> AsyncGenerator[list[Worker]]:
    started = await start(ByteLimiter(max_bytes), *sizes)
    yield started
    for worker in started:
        await worker.cancel()


def run(test: Coroutine[object, object, None]) -> None:
    asyncio.run(test)


def test_work_is_admitted_while_it_fits() -> None:
    async def test() -> None:
        async with workers(10, 4, 6, 1) as (a, b, c):
            assert (a.admitted, b.admitted, c.admitted) == (True, True, False)
            await a.finish()
            assert c.admitted

    run(test())


def test_small_request_does_not_overtake_a_large_one() -> None:
    async def test() -> None:
        async with workers(10, 6, 8, 1) as (first, large, small):
            assert (large.admitted, small.admitted) == (False, False)
            await first.finish()
            assert (large.admitted, small.admitted) == (True, True)

    run(test())


def test_oversize_request_is_admitted_alone() -> None:
    async def test() -> None:
        async with workers(10, 1, 100, 1) as (before, oversize, after):
            assert not oversize.admitted
            await before.finish()
            assert (oversize.admitted, after.admitted) == (True, False)
            await oversize.finish()
            assert after.admitted

    run(test())


def test_without_a_limit_everything_is_admitted() -> None:
    async def test() -> None:
        async with workers(None, 1 << 60, 1 << 60) as (a, b):
            assert a.admitted
            assert b.admitted

    run(test())


def test_cancelled_holder_gives_its_bytes_back() -> None:
    async def test() -> None:
        async with workers(10, 10, 10) as (holder, waiting):
            await holder.cancel()
            assert waiting.admitted

    run(test())


def test_cancelled_waiter_lets_those_behind_it_in() -> None:
    async def test() -> None:
        async with workers(10, 5, 10, 5) as (_, waiting, behind):
            assert not behind.admitted
            await waiting.cancel()
            assert behind.admitted

    run(test())


def test_waiter_cancelled_just_as_it_is_admitted_loses_no_bytes() -> None:
    async def test() -> None:
        limiter = ByteLimiter(10)
        await limiter.wait_for_bytes(10)
        waiting = asyncio.create_task(limiter.wait_for_bytes(10))
        await settle()
        await limiter.release_bytes(10)  # admits the waiter, which has not run since
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        (after,) = await start(limiter, 10)
        assert after.admitted
        await after.finish()

    run(test())


def test_failure_inside_the_block_gives_the_bytes_back() -> None:
    async def test() -> None:
        limiter = ByteLimiter(10)
        with pytest.raises(RuntimeError, match="boom"):
            async with limiter.reserve(10):
                raise RuntimeError("boom")
        (after,) = await start(limiter, 10)
        assert after.admitted
        await after.finish()

    run(test())


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_limit_must_be_positive(max_bytes: int) -> None:
    with pytest.raises(ValueError, match="a byte limit must be positive"):
        ByteLimiter(max_bytes)
