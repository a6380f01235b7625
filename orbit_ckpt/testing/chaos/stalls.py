"""The socket at which a stalled script waits for its release."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from orbit_ckpt.testing.hook.operations import Operation


class StallControl:
    """Accepts stalled scripts, and releases them."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen()
        self._waiting: list[socket.socket] = []

    def accept(self, timeout_s: float) -> Operation:
        """Return the operation before which a script waits.

        Raises:
            TimeoutError: None waits in time.
        """
        self._listener.settimeout(timeout_s)
        waiting, _ = self._listener.accept()
        self._waiting.append(waiting)
        with waiting.makefile() as lines:
            fields: dict[str, Any] = json.loads(lines.readline())
        return Operation(**fields)

    def release(self) -> None:
        """Let all go on that `accept` has reported."""
        while self._waiting:
            self._waiting.pop().close()

    def close(self) -> None:
        """Let all go on, and those that come later, too."""
        self.release()
        self._listener.close()
