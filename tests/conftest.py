"""What holds for all tests: eight CPU devices, files in memory, Hypothesis profiles.

`nox -s soak` looks for new counterexamples and writes to the disk; a usual run draws the same few
examples every time.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import settings

DEVICES = "--xla_force_host_platform_device_count"

MEMORY = Path("/dev/shm")  # noqa: S108 - a file system, not a file
MEMORY_BYTES = 4 << 30
"""What the temporary files of a run need at most, with room to spare."""

# both are read when JAX first looks for devices
os.environ["JAX_PLATFORMS"] = "cpu"
if DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}=8"

# for `tests.support`; last, so that it does not hide an installed orbit_ckpt
sys.path.append(str(Path(__file__).parent.parent))

settings.register_profile("quick", max_examples=15, deadline=None, derandomize=True)
settings.register_profile("soak", max_examples=2000, deadline=None)

from tests.soak import SOAK  # noqa: E402 - the package of tests is only now on the path

settings.load_profile("soak" if SOAK else "quick")

if not SOAK and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
    # every save waits for the disk many times, which checks nothing and may double the time
    os.environ.setdefault("TMPDIR", str(MEMORY))
    tempfile.tempdir = None  # asks for the variable again


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start a worker more than there are cores; tests of several processes mostly wait."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return 1 + (len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Distribute units of tests, unless the command line asks for another way."""
    from tests.scheduling import UnitScheduling  # noqa: PLC0415 - xdist may be absent

    return UnitScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the slow tests where several workers share the run."""
    if hasattr(config, "workerinput"):
        from tests.scheduling import slowest_first  # noqa: PLC0415 - xdist may be absent

        slowest_first(items)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread be started, as while Python 3.12 exits."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
