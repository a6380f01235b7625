"""What remains to be done of a save after its data has been taken from the caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class Commit:
    """The second phase of a save, to be run once.

    Making one (staging) copies what the caller may change; running it makes that durable.
    """

    def __init__(self, write: Callable[[], Awaitable[None]]) -> None:
        self._write: Callable[[], Awaitable[None]] | None = write

    async def run(self) -> None:
        """Make everything durable.

        Raises:
            RuntimeError: It has been run before.
        """
        if self._write is None:
            raise RuntimeError("This commit has been run; stage a new one.")
        write, self._write = self._write, None
        await write()
