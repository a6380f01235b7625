"""The command line as a user runs it: another process, real checkpoints.

One server per test run forks a process for each command; `fresh` starts Python anew.
"""

from __future__ import annotations

import functools
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pexpect
import pytest
from pexpect import fdpexpect

import orbit_ckpt as ocp
from tests.support import put, unpack

# a shell that runs the tests in the background makes them, and what they start, ignore Ctrl+C
signal.signal(signal.SIGINT, signal.default_int_handler)

COMMAND = [sys.executable, "-m", "orbit_ckpt.cli"]

ENVIRONMENT = {
    **os.environ,
    "ORBIT_CKPT_CACHE": "",  # records nothing
    "JAX_PLATFORMS": "no-such-platform",  # an error as soon as a command asks for a device
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


class Server:
    """The process of `server.py`, which runs commands."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("server.py"))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )

    def start(
        self,
        args: Sequence[object],
        cwd: Path,
        *,
        env: Mapping[str, str] = MappingProxyType({}),
        **files: object,
    ) -> None:
        """Start a command with more variables; `out` and `err`, or `terminal`, name its files."""
        assert self._process.stdin is not None
        request = {"args": [*map(str, args)], "cwd": str(cwd), "env": dict(env)}
        request |= {name: str(file) for name, file in files.items()}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        assert self._answer() == "started"

    def wait(self) -> int:
        """Return the exit code of the command."""
        return int(self._answer())

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def run_command(
    server: Server,
    directory: Path,
    *args: object,
    status: int | None = 0,
    env: Mapping[str, str] = MappingProxyType({}),
) -> Result:
    """Run a command in a directory, and check how it ends."""
    out, err = (directory.with_name(f"{directory.name}.{name}") for name in ("out", "err"))
    server.start(args, directory, env=env, out=out, err=err)
    code = server.wait()
    result = Result(code, out.read_text(), err.read_text())
    assert "Traceback" not in result.err, result.err
    assert status is None or code == status, result.out + result.err
    return result


@pytest.fixture
def cli(tmp_path: Path, server: Server) -> Run:
    """Return what runs a command in a directory."""

    return functools.partial(run_command, server, tmp_path)


class Terminal(fdpexpect.fdspawn):
    """A command on a terminal."""

    def __init__(self, server: Server, args: Sequence[object], cwd: Path) -> None:
        ours, other = pty.openpty()
        termios.tcsetwinsize(ours, (40, 120))
        super().__init__(ours, encoding="utf-8", timeout=120)
        self._server = server
        server.start(args, cwd, terminal=os.ttyname(other))
        os.close(other)  # so that the output ends with the command

    def interrupt(self) -> None:
        """Press Ctrl+C."""
        self.send("\3")

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was printed since the last `expect`."""
        self.expect(pexpect.EOF)
        self.close()
        assert isinstance(self.before, str)
        return self._server.wait(), self.before


@pytest.fixture
def on_terminal(server: Server, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Return what runs a command on a terminal."""
    opened: list[Terminal] = []

    def start(*args: object) -> Terminal:
        opened.append(Terminal(server, args, tmp_path))
        return opened[-1]

    yield start
    for terminal in opened:
        if not terminal.closed:  # the test failed; a terminal that goes away ends its command
            terminal.close()
            server.wait()


@pytest.fixture
def fresh(tmp_path: Path) -> Run:
    """Return what runs a command as a shell does, with another environment if one is given."""

    def run(*args: object, env: Mapping[str, str] = ENVIRONMENT, status: int = 0) -> Result:
        done = subprocess.run(
            [*COMMAND, *map(str, args)],
            check=False,
            cwd=tmp_path,
            env=dict(env),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == status, done.stdout + done.stderr
        return Result(done.returncode, done.stdout, done.stderr)

    return run


def make_state(step: int) -> dict[str, Any]:
    """Return a tree of every kind of leaf; the steps differ in their values."""
    rng = np.random.default_rng(step)
    kernel = rng.standard_normal((16, 8)).astype(np.float32)
    return {
        "params": {
            "dense": {"kernel": put(kernel, "x", None, x=8), "bias": jnp.zeros(8, jnp.bfloat16)},
            "layer_0": {"kernel": jnp.ones((4, 4))},
            "layer_1": {"kernel": jnp.ones((4, 4))},
        },
        "opt_state": [np.full((100, 30), step, np.float64), None],
        "odd": np.array([1.0, np.nan, np.inf, -np.inf, 3.0]),
        "complex": np.array([3 + 4j]),
        "key": jax.random.key(1),
        "when": np.array(["2020-01-01"], "datetime64[D]"),
        "name": "a [bold]name[/bold] with </script>",
        "step": step,
        "blob": b"\x00\x01",
    }


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of three steps, of which nothing may be changed."""
    root = tmp_path_factory.mktemp("cli") / "run"
    with ocp.CheckpointManager(root) as run:
        for step, loss in ((10, 0.5), (20, 0.25), (30, 0.4)):
            run.save(step, make_state(step), metrics={"loss": loss})
        run.pin(10)
    return root


@pytest.fixture
def own_run(run_directory: Path, tmp_path: Path) -> Path:
    """Return a copy of the run to change."""
    return Path(shutil.copytree(run_directory, tmp_path / "run"))


@pytest.fixture(scope="session")
def golden_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint that Orbax wrote."""
    return unpack("orbax-0.12.8.tar.gz", tmp_path_factory.mktemp("golden")) / "pytree-ocdbt-zarr2"
