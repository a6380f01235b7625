"""The process that the tests of this directory let save and die."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.support import Saver


@pytest.fixture(scope="session")
def saver() -> Iterator[Saver]:
    process = Saver()
    yield process
    process.close()
