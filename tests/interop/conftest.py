"""Options and fixtures of the interop tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reference",
        type=Path,
        default=None,
        help="directory of what write_reference.py wrote, one subdirectory a release",
    )


@pytest.fixture
def quiet_orbax() -> Iterator[None]:
    """Let Orbax warn; a test checks this library's warnings with `pytest.warns`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
