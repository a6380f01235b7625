"""A process that has imported what programs need, and forks for each of them.

Reads one request per line of JSON from its standard input, and prints one line for each program
that begins or ends. Run with `python -m`, and the modules to import as arguments.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import sys
import warnings
from typing import Any

from orbit_ckpt.testing.hook.install import install_from_environment


class _Server:
    """Forks a child for each request; reports how children end."""

    def __init__(self) -> None:
        self._requests = sys.stdin.fileno()
        self._replies = os.dup(sys.stdout.fileno())  # programs print elsewhere
        self._wakeup, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end)
        signal.signal(signal.SIGCHLD, _ignore)
        self._rest = b""
        self._children: dict[int, int] = {}
        """The number of the run that each child serves: the system gives process ids again."""
        self._runs = 0

    def serve(self) -> dict[str, Any] | None:
        """Serve until the input ends; in a forked child, return its request."""
        while True:
            ready, _, _ = select.select([self._requests, self._wakeup], [], [])
            if self._wakeup in ready:
                os.read(self._wakeup, 1 << 10)
                self._reap()
            if self._requests in ready:
                data = os.read(self._requests, 1 << 16)
                if not data:
                    return None
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    child = os.fork()
                    if child == 0:
                        self._leave()
                        return request
                    self._runs += 1
                    self._children[child] = self._runs
                    self._reply({"began": self._runs, "pid": child})

    def _reap(self) -> None:
        for child in list(self._children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                run = self._children.pop(child)
                self._reply({"ended": run, "status": os.waitstatus_to_exitcode(status)})

    def _reply(self, reply: dict[str, int]) -> None:
        os.write(self._replies, json.dumps(reply).encode() + b"\n")

    def _leave(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (self._requests, self._replies, self._wakeup):
            os.close(descriptor)


def _ignore(_number: int, _frame: object) -> None:
    """Let the signal wake `select` up."""


def main() -> None:
    """Import, then serve; in a child, run the script that was requested."""
    from orbit_ckpt.testing.hook import director, files  # noqa: PLC0415 - so that children have them

    for name in (director.__name__, files.__name__, *sys.argv[1:]):
        _import(name)
    # raised by JAX, whose threads do not run here yet
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
    gc.collect()
    gc.freeze()  # so that a collection in a child does not copy all of this
    request = _Server().serve()
    if request is not None:
        _run(**request)


def _import(name: str) -> None:
    """Import a module, and what its lazy names stand for."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        sys.stderr.write(f"The fork server cannot import {name}: {error}\n")
        return
    for public in getattr(module, "__all__", ()):
        getattr(module, public, None)


def _run(
    directory: str,
    script: str,
    arguments: list[str],
    environment: dict[str, str],
    out: str,
    err: str,
) -> None:
    """Run a script as `python SCRIPT` would."""
    os.setpgid(0, 0)
    os.chdir(directory)
    for number, name in ((0, os.devnull), (1, out), (2, err)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND
        descriptor = os.open(name, flags)
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    sys.addaudithook(_refuse_late_settings)
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    install_from_environment()
    runpy.run_path(script, run_name="__main__")


def _refuse_late_settings(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse to set a variable that JAX has read already.

    Raises:
        RuntimeError: JAX has read it.
    """
    if event != "os.putenv" or "jax" not in sys.modules:
        return
    name, value = (os.fsdecode(argument) for argument in arguments)
    if name.startswith("JAX_") and os.environ.get(name) != value:
        raise RuntimeError(
            f"The script sets {name}={value}, which JAX has read already, because the fork server "
            f"has imported it. Set it in the test, with chaos.environment[{name!r}] = {value!r}, "
            "or run the script without the fork server: chaos.preload = ()."
        )


if __name__ == "__main__":
    main()
