"""Options of the interop tests."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reference",
        type=Path,
        default=None,
        help="directory of what write_reference.py wrote, one subdirectory a release",
    )
