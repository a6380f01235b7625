"""Fit the tests of the packages into a run of all tests of this repository."""

from __future__ import annotations

import pytest

SLOW = ("test_failed_write", "test_flipped_bit", "test_damage_is")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that take over a second for some packages."""
    if item.name.startswith(SLOW):
        item.add_marker(pytest.mark.slow)
