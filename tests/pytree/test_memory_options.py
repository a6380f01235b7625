"""Memory budgets, in bytes and in Orbax's units."""

from __future__ import annotations

from typing import Literal

import pytest

import orbit_ckpt as ocp
from orbit_ckpt.options import MemoryLimitOptions

LIMIT = MemoryLimitOptions(max_transfer_concurrent_gb=2e-6)


@pytest.mark.parametrize(
    ("asked", "transferred"), [(None, 2000), ("auto", 2000), (1000, 1000), (3000, 2000)]
)
def test_transfers_from_devices_stay_below_the_limit(
    asked: int | Literal["auto"] | None, transferred: int
) -> None:
    memory = ocp.MemoryOptions(1, 1, transfer_concurrent_bytes=asked)
    assert memory.within(LIMIT).max_transfer_bytes == transferred


def test_limit_leaves_other_budgets_as_they_are() -> None:
    memory = ocp.MemoryOptions(5, 6).within(LIMIT)
    assert (memory.write_concurrent_bytes, memory.read_concurrent_bytes) == (5, 6)
    assert ocp.MemoryOptions(5, 6).within(MemoryLimitOptions()) == ocp.MemoryOptions(5, 6)


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_must_be_positive(limit: float) -> None:
    with pytest.raises(ValueError, match="max_transfer_concurrent_gb must be positive"):
        MemoryLimitOptions(limit)
