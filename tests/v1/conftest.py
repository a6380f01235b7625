from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet_orbax() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="orbax")
        yield
