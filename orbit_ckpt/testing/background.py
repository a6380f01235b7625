"""Hold background saves back, so that what runs beside them runs first."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Generator
from unittest import mock

from orbit_ckpt._src.runtime.commit import Commit


@contextlib.contextmanager
def held_commits() -> Generator[threading.Event]:
    """Hold back all that saves do in the background until the event is set or the block ends."""
    event = threading.Event()
    commit = Commit.run

    async def run(self: Commit) -> None:
        await asyncio.to_thread(event.wait)
        await commit(self)

    with mock.patch.object(Commit, "run", run):
        try:
            yield event
        finally:
            event.set()
