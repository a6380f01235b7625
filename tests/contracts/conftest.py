"""Mark the slow tests of contracts, which must not require the mark of those who subclass them."""

from __future__ import annotations

import pytest

SLOW = ("test_failed_write", "test_flipped_bit", "test_damage")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that take over a second for some plug-ins."""
    if item.name.startswith(SLOW):
        item.add_marker(pytest.mark.slow)
