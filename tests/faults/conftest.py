"""The process that the tests of this directory let save and die."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.support import Saver


@pytest.fixture(scope="session")
def saving_process() -> Iterator[Saver]:
    process = Saver()
    yield process
    process.close()


@pytest.fixture
def saver(saving_process: Saver) -> Iterator[Saver]:
    yield saving_process
    saving_process.end_child()
