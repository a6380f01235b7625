"""The same module as `orbit_ckpt.v1`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from orbit_ckpt import v1

if TYPE_CHECKING:
    from orbit_ckpt.v1 import *  # noqa: F403 - what a type checker sees

sys.modules[__name__] = v1
