"""Which tests pytest-xdist gives to one worker, and in which order."""

from __future__ import annotations

from collections import Counter

import pytest
from xdist.scheduler import LoadScopeScheduling

SEVERAL_PROCESSES = ("tests/multiprocess/", "tests/stores/test_processes.py")


def unit_of(test_id: str) -> str:
    """Return the name of the unit of work that a test belongs to.

    The tests of a file share fixtures, so they are one unit. All files that start several processes
    at once form another: two such groups would compete for the cores and miss their deadlines.
    """
    file = test_id.partition("::")[0]
    return "several processes" if file.startswith(SEVERAL_PROCESSES) else file


class UnitScheduling(LoadScopeScheduling):
    """Gives the units to the workers in the order of the collection."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        config.option.loadscopereorder = False  # a unit with many tests may still be a short one
        super().__init__(config, log)  # pyright: ignore[reportArgumentType] - not a public type

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def slowest_first(items: list[pytest.Item]) -> None:
    """Order the units by how many slow tests they have, so that short ones fill up the end."""
    slow = Counter(unit_of(item.nodeid) for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (-slow[unit_of(item.nodeid)], unit_of(item.nodeid)))
