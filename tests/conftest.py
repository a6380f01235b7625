"""What holds for all tests: eight CPU devices, shared helpers, Hypothesis profiles.

`nox -s soak` looks for new counterexamples; a usual run draws the same few examples every time.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import settings

DEVICES = "--xla_force_host_platform_device_count"

# both are read when JAX first looks for devices
os.environ["JAX_PLATFORMS"] = "cpu"
if DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}=8"

# for `tests.support`; last, so that it does not hide an installed orbit_ckpt
sys.path.append(str(Path(__file__).parent.parent))

settings.register_profile("quick", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("soak", max_examples=2000, deadline=None)

from tests.soak import SOAK  # noqa: E402 - the package of tests is only now on the path

settings.load_profile("soak" if SOAK else "quick")


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread be started, as while Python 3.12 exits."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
