"""Programs in processes of their own, which need not import JAX again.

Every worker of a test run has a server, which has imported what `tests.preload` names and forks for
each program. The processes are real ones: they have devices, files and signals of their own.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 240

Options = Mapping[str, Any]


@functools.cache
def context() -> ForkServerContext:
    """Return what forks processes from the server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preload"])
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])  # Python 3.12 forgets them
    with mock.patch.dict(os.environ, {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}):
        forkserver.ensure_running()
    return context


class Program:
    """A process that runs a function."""

    def __init__(
        self,
        function: Callable[..., object],
        *arguments: object,
        directory: Path | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        config: Options = MappingProxyType({}),
    ) -> None:
        """Start it.

        Args:
            function: What it runs; importable.
            arguments: What it gives to the function.
            directory: Where it works.
            environment: Variables to add to those of this process.
            config: Values of `jax.config`, of which the variables have been read already.
        """
        self._files = [tempfile.NamedTemporaryFile("r") for _ in range(2)]  # noqa: SIM115 - closed by `wait`
        names = [file.name for file in self._files]
        variables = {**os.environ, **environment}
        place = (directory or Path.cwd(), variables, dict(config), names)
        self._process = context().Process(target=_live, args=(place, function, arguments))
        self._process.start()

    @property
    def sentinel(self) -> int:
        """What `multiprocessing.connection.wait` waits for."""
        return self._process.sentinel

    @property
    def status(self) -> int | None:
        """The exit status, None while it runs; negative: the signal that has ended it."""
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Return how the process ended and what it printed; kill it if it takes too long."""
        self._process.join(timeout_s)
        is_late = self._process.is_alive()
        if is_late:
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        self._process.close()
        assert code is not None
        out, err = (file.read() for file in self._files)
        for file in self._files:
            file.close()
        if is_late:
            raise subprocess.TimeoutExpired("program", timeout_s, out, err)
        return subprocess.CompletedProcess("program", code, out, err)


def wait_for_all(
    programs: Sequence[Program], timeout_s: float = TIMEOUT_S
) -> list[subprocess.CompletedProcess[str]]:
    """Return how programs that wait for each other ended; if one fails, kill the others."""
    running = {program.sentinel: program for program in programs}
    deadline = time.monotonic() + timeout_s
    while running:
        ready = wait([*running], deadline - time.monotonic())
        ended = [running.pop(sentinel) for sentinel in [*running] if sentinel in ready]
        if not ended or any(program.status for program in ended):
            break
    for program in running.values():
        program.kill()
    return [program.wait() for program in programs]


def run_script(
    script: str | Path, *arguments: object, path: Sequence[Path] = (), **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python code as its own program.

    Args:
        script: A file, or the code itself.
        arguments: What it finds in `sys.argv`.
        path: Directories to import from.
        options: Those of `Program`.
    """
    return Program(_execute, script, [*map(str, arguments)], [*map(str, path)], **options).wait()


def run_command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of `orbit-ckpt`."""
    return Program(_command, [*map(str, arguments)], **options).wait()


def _execute(script: str | Path, arguments: list[str], path: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        if isinstance(script, str):
            file = Path(directory) / "script.py"
            file.write_text(script)
        else:
            file = script
        sys.argv = [str(file), *arguments]
        sys.path[:0] = [str(file.parent), *path]
        runpy.run_path(str(file), run_name="__main__")


def _command(arguments: list[str]) -> None:
    from orbit_ckpt.cli import main  # noqa: PLC0415 - has been imported there

    sys.argv = ["orbit-ckpt", *arguments]
    main()


def _live(
    place: tuple[Path, dict[str, str], dict[str, Any], list[str]],
    function: Callable[..., object],
    arguments: Sequence[object],
) -> None:
    import jax  # noqa: PLC0415 - the process that starts this one may not have it

    directory, variables, config, outputs = place
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(variables)
    for number, name in enumerate(outputs, 1):
        descriptor = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    for name, value in config.items():
        jax.config.update(name, value)
    try:
        function(*arguments)
    finally:  # as Python does at its end
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
        atexit._run_exitfuncs()
