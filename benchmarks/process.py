"""The parent's end of a worker."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TypeVar

from benchmarks.contenders import UnsupportedTree
from benchmarks.messages import Answer, Command, Failed, Result, Unsupported

_ROOT = Path(__file__).parent.parent
_LAST_LINES = 30


T = TypeVar("T", bound=Result)


class ContenderError(Exception):
    """A contender raised an error; the message contains the traceback."""


class WorkerDiedError(ContenderError):
    """A worker died or timed out; the message contains its last lines of output."""


@contextmanager
def start_worker(*, devices: int, timeout_s: float) -> Iterator[WorkerProcess]:
    """Start a worker, and stop it at the end of the block.

    Args:
        devices: Number of CPU devices that JAX has in the worker.
        timeout_s: Time without an answer after which the worker counts as dead.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    ours, theirs = socket.socketpair()
    with Connection(ours.detach()) as channel, tempfile.TemporaryFile() as output:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker", str(theirs.fileno())],
                cwd=_ROOT,
                env={"JAX_PLATFORMS": "cpu", **os.environ, "XLA_FLAGS": flags},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield WorkerProcess(process, channel, output, timeout_s)
        finally:
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A running worker, see `start_worker`."""

    _process: subprocess.Popen[bytes]
    _channel: Connection
    _output: IO[bytes]
    _timeout_s: float

    @property
    def is_alive(self) -> bool:
        """Whether the worker is alive."""
        return self._process.poll() is None

    def ask(self, command: Command, expected: type[T]) -> T:
        """Send a message to the worker and return its answer.

        Raises:
            UnsupportedTree: The contender cannot represent the tree.
            ContenderError: The contender raised.
            WorkerDiedError: The worker died or timed out.
        """
        match self._exchange(command):
            case Unsupported(reason):
                raise UnsupportedTree(reason)
            case Failed(trace):
                raise ContenderError(trace)
            case answer:
                assert isinstance(answer, expected)  # noqa: S101 - the worker is ours
                return answer

    def _exchange(self, command: Command) -> Answer:
        try:
            self._channel.send(command)
            if self._channel.poll(self._timeout_s):
                return self._channel.recv()
            what = f"gave no answer within {self._timeout_s:g} s"
        except (EOFError, OSError):
            what = f"ended with exit status {self._process.wait(self._timeout_s)}"
        self._process.kill()
        self._process.wait()
        raise WorkerDiedError(f"The worker {what}.\n{self._last_lines()}".rstrip())

    def _last_lines(self) -> str:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_LAST_LINES:])
