"""The fixture `chaos`."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

import pytest

from orbit_ckpt.testing.chaos import damage, faults
from orbit_ckpt.testing.chaos.fork_server import ForkServers
from orbit_ckpt.testing.chaos.points import Result, Sweep
from orbit_ckpt.testing.chaos.proxy import Proxy
from orbit_ckpt.testing.chaos.scripts import Command, Run, RunningScript, wait_for_all
from orbit_ckpt.testing.hook.faults import Fault

_TIMEOUT_S = 300.0

_PRELOAD = ("jax", "jax.numpy", "orbit_ckpt")


class _Life:
    """The scripts that one call of a program starts, and the faults that they meet with."""

    def __init__(self, armed: Mapping[int, Fault]) -> None:
        self.armed = armed
        self.scripts: list[RunningScript] = []


_life: ContextVar[_Life | None] = ContextVar("life", default=None)


class Chaos:
    """Runs scripts in processes of their own, and lets things go wrong in them.

    Attributes:
        environment: Variables for the scripts, in addition to those of this process. It holds a
            cache for what JAX compiles, unless this process has one.
        preload: Modules that a fork server imports once, so that scripts need not import them
            again; `()` to start every script without a server.
        kill: Make a fault that kills the process.
        tear: Make a fault that kills it in the middle of a write.
        fail: Make a fault that raises an `OSError`.
        lie: Make a fault that reports success, and does nothing.
        stall: Make a fault that waits.
        fill_disk: Make a fault that leaves no space.
        flip_bits: Damage files.
    """

    kill = staticmethod(faults.kill)
    tear = staticmethod(faults.tear)
    fail = staticmethod(faults.fail)
    lie = staticmethod(faults.lie)
    stall = staticmethod(faults.stall)
    fill_disk = staticmethod(faults.fill_disk)
    flip_bits = staticmethod(damage.flip_bits)

    def __init__(self, servers: ForkServers, root: Path, test: str) -> None:
        """Make one; the fixture does.

        Args:
            servers: Fork processes.
            root: A directory for the directories of `every_point`.
            test: Name of the test, for messages.
        """
        self.environment: dict[str, str] = {}
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
            self.environment |= servers.compilation_cache
        self.preload: Sequence[str] = _PRELOAD if hasattr(os, "fork") else ()
        self._servers = servers
        self._root = root
        self._test = test
        self._scripts: list[RunningScript] = []
        self._resources = contextlib.ExitStack()

    def start(
        self,
        script: str | Path,
        *arguments: object,
        directory: str | Path,
        faults: Sequence[Fault] = (),
        environment: Mapping[str, str] | None = None,
    ) -> RunningScript:
        """Start a script.

        Args:
            script: The file.
            arguments: What it finds in `sys.argv`.
            directory: Its working directory. Only storage operations below it count, and those in
                object stores.
            faults: What goes wrong.
            environment: Variables for this script only.
        """
        command = Command(
            Path(script).resolve(),
            tuple(map(str, arguments)),
            Path(directory).resolve(),
            {**os.environ, **self.environment, **(environment or {})},
            tuple(self.preload),
        )
        life = _life.get()
        armed = life.armed.get(len(life.scripts)) if life is not None else None
        running = RunningScript(command, [*faults, *([armed] if armed else [])], self._servers)
        self._scripts.append(running)
        if life is not None:
            life.scripts.append(running)
        return running

    def run(
        self,
        script: str | Path,
        *arguments: object,
        directory: str | Path,
        faults: Sequence[Fault] = (),
        environment: Mapping[str, str] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> Run:
        """Run a script until it ends, well or not.

        Args:
            script: The file.
            arguments: What it finds in `sys.argv`.
            directory: Its working directory; see `start`.
            faults: What goes wrong.
            environment: Variables for this script only.
            timeout_s: How long it may take.

        Raises:
            TimeoutError: It takes longer.
        """
        running = self.start(
            script, *arguments, directory=directory, faults=faults, environment=environment
        )
        return running.wait(timeout_s)

    def wait_for_all(
        self, *scripts: RunningScript, timeout_s: float = _TIMEOUT_S, grace_s: float = 0
    ) -> list[Run]:
        """Wait for the processes of one program; return how they ended.

        Once one of them has ended badly, the others are killed, as a scheduler would.

        Args:
            scripts: The processes, from `start`.
            timeout_s: How long they may take.
            grace_s: How long the others may go on.
        """
        return wait_for_all(scripts, timeout_s, grace_s=grace_s)

    def every_point(
        self,
        run: Callable[[Path], object],
        check: Callable[[Result], object],
        *,
        fault: Callable[[int], Fault] = faults.kill,
        most: int | None = None,
        seed: int = 0,
        process: int = 0,
        jobs: int = 1,
    ) -> int:
        """Prove that a program resumes, whichever storage operation a crash comes before.

        The program first runs undisturbed. Then, for each of its operations, it runs from scratch
        in a new directory, is killed right before the operation, and is started again.

        Args:
            run: Runs the program in a directory, with `run` or with `start` and `wait_for_all` of
                this fixture. When it is called again for a directory, the program has to resume
                from what it finds there.
            check: Called at the end of each; raises if the program has not ended as it should.
            fault: Returns what goes wrong at the n-th operation, instead of `kill`.
            most: How many points to try; by default all.
            seed: Chooses them.
            process: Which process meets with the fault, in the order in which they start.
            jobs: How many points to try at once; both functions are then called in threads.

        Returns:
            The number of points.

        Raises:
            AssertionError: The program did not end well at some point. Notes name the operation,
                and the commands with which the same happens again.
            ValueError: `run` starts no script, or the script saves nothing.
        """
        __tracebackhide__ = True
        return Sweep(self, run, check, fault, process, self._test).every_point(most, seed, jobs)

    def start_once(
        self, run: Callable[[Path], object], directory: Path, armed: Mapping[int, Fault]
    ) -> list[Run]:
        """Run a program once; return how its processes ended.

        Args:
            run: The program.
            directory: Where to run it.
            armed: What goes wrong, by the number of the process.
        """
        life = _Life(armed)
        token = _life.set(life)
        try:
            run(directory)
            return [script.wait(_TIMEOUT_S) for script in life.scripts]
        finally:
            _life.reset(token)

    def proxy(self, endpoint: str) -> Proxy:
        """Put a proxy between the scripts and the server of an object store.

        The scripts find it by `AWS_ENDPOINT_URL` and `TENSORSTORE_GCS_HTTP_URL`.

        Args:
            endpoint: Address of the server, such as `http://127.0.0.1:9000`.

        Raises:
            ValueError: The address is none of a server without encryption.
        """
        proxy = self._resources.enter_context(Proxy(endpoint))
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "TENSORSTORE_GCS_HTTP_URL"):
            self.environment[name] = proxy.endpoint
        return proxy

    def new_directory(self, name: str) -> Path:
        """Return an empty directory for a program."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._root))

    def close(self) -> None:
        """End all processes that still run."""
        for script in self._scripts:
            script.kill()
        self._resources.close()


@pytest.fixture(scope="session")
def chaos_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServers]:
    """Fork processes for `chaos`; one server lives as long as the tests."""
    servers = ForkServers(tmp_path_factory.mktemp("compiled"))
    yield servers
    servers.close()


@pytest.fixture
def chaos(
    chaos_servers: ForkServers,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Chaos]:
    """Run training scripts in processes in which things go wrong; see `Chaos`."""
    chaos = Chaos(chaos_servers, tmp_path_factory.mktemp("chaos"), request.node.nodeid)
    yield chaos
    chaos.close()
