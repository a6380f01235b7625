"""Start processes by forking them from one that has imported JAX."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

from orbit_ckpt.testing.chaos.command import PACKAGES, Command

_READ_AT_IMPORT = ("JAX_", "XLA_", "PYTHON", "TF_", "TPU_", "LIBTPU_", "CUDA_", "ROCM_")
"""Variables that modules read when they are imported: each setting needs a server of its own."""


class ForkServers:
    """The servers that run, one for each setting.

    Attributes:
        compilation_cache: Variables that let all scripts share what JAX compiles.
    """

    def __init__(self, cache: Path) -> None:
        """Make it; servers start when they are needed.

        Args:
            cache: A directory for what JAX compiles.
        """
        self.compilation_cache = {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        self._servers: dict[tuple[object, ...], _ForkServer] = {}
        self._lock = threading.Lock()

    def start(
        self, command: Command, variables: Mapping[str, str], outputs: tuple[Path, Path]
    ) -> ForkedProcess:
        """Start a script.

        Args:
            command: The script.
            variables: Its environment.
            outputs: Files for its standard output and error.
        """
        read = {k: v for k, v in variables.items() if k.startswith(_READ_AT_IMPORT)}
        key = (*sorted(read.items()), *command.preload)
        with self._lock:
            if key not in self._servers:
                self._servers[key] = _ForkServer(command.preload, variables)
            server = self._servers[key]
        request = {
            "directory": str(command.directory),
            "script": str(command.script),
            "arguments": command.arguments,
            "environment": dict(variables),
            "out": str(outputs[0]),
            "err": str(outputs[1]),
        }
        return server.start(request)

    def close(self) -> None:
        """End the servers."""
        for server in self._servers.values():
            server.close()


class _ForkServer:
    def __init__(self, preload: tuple[str, ...], variables: Mapping[str, str]) -> None:
        paths = [str(PACKAGES), *filter(None, [variables.get("PYTHONPATH")])]
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "orbit_ckpt.testing.hook.fork_server", *preload],
            env={**variables, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._process = process
        self._requests, self._replies = (
            cast(IO[bytes], pipe) for pipe in (process.stdin, process.stdout)
        )
        self._lock = threading.Lock()
        self._began: list[tuple[int, int]] = []
        self._statuses: dict[int, int] = {}
        """The exit status of each run, by its number."""

    def start(self, request: Mapping[str, object]) -> ForkedProcess:
        with self._lock:
            self._requests.write(json.dumps(request).encode() + b"\n")
            while not self._began:
                self._read(None)
            return ForkedProcess(self, *self._began.pop())

    def status_of(self, run: int, timeout_s: float | None) -> int | None:
        """Return the exit status of a run, None if it has not ended before the timeout."""
        with self._lock:
            while run not in self._statuses and self._read(timeout_s):
                pass
            return self._statuses.get(run)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _read(self, timeout_s: float | None) -> bool:
        """Read what the server reports next; return whether there was something in time.

        Raises:
            RuntimeError: The server has died.
        """
        if not select.select([self._replies], [], [], timeout_s)[0]:
            return False
        line = self._replies.readline()
        if not line:
            raise RuntimeError(
                f"The fork server ended with status {self._process.wait()}; see its standard error."
            )
        reply: dict[str, int] = json.loads(line)
        if "began" in reply:
            self._began.append((reply["began"], reply["pid"]))
        else:
            self._statuses[reply["ended"]] = reply["status"]
        return True


class ForkedProcess:
    """A child of a fork server, like `subprocess.Popen`."""

    def __init__(self, server: _ForkServer, run: int, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._run = run
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        if self._status is None:
            self._status = self._server.status_of(self._run, 0)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not ended in time.
        """
        if self._status is None:
            self._status = self._server.status_of(self._run, timeout)
        if self._status is None:
            raise subprocess.TimeoutExpired("script", timeout or 0)
        return self._status
