"""Mark the slow tests of contracts, which must not require the mark of those who subclass them.

A usual run refuses every write of a few plug-ins: of one that writes arrays, one that writes a
file, one that saves a tree, one made for Orbax, and one format.
"""

from __future__ import annotations

import pytest

REFUSED = "test_failed_write"
SLOW = (REFUSED, "test_flipped_bit", "test_damage")
USUAL = (
    *("TestArrayHandler", "TestStringHandler", "TestPyTreeHandler", "TestJsonHandler"),
    *("TestRaggedHandlerOfOrbax", "TestSafetensors"),
)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that take over a second for some plug-ins."""
    if item.name.startswith(SLOW):
        item.add_marker(pytest.mark.slow)
    if item.name.startswith(REFUSED) and item.parent and item.parent.name not in USUAL:
        item.add_marker(pytest.mark.matrix)
