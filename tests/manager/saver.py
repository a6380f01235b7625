"""Save the steps named on the command line; wait for a line of input after each."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import orbit_ckpt as ocp

root, *steps = sys.argv[1:]
for step in steps:
    ocp.save(Path(root) / f"step_{step}", {"w": np.full(3, float(step))})
    sys.stdin.readline()
