"""How much tests with random or repeated attempts try: little, or much under `nox -s soak`."""

from __future__ import annotations

import os

SOAK = os.environ.get("ORBIT_CKPT_SOAK") == "1"


def rounds(usual: int, soak: int) -> int:
    """Return how many attempts a test makes: in a usual run, or in a long one."""
    return soak if SOAK else usual
