"""Print how much memory loads take, and how much their plans say: `peak_memory.py PATH OPTIONS...`.

Options are joined by `+`: `cast`, `jax`. One line of two numbers of bytes for each.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import orbit_ckpt as ocp


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main(path: str, *wanted: str) -> None:
    ocp.load(path, only="**/l0", sharding=jax.devices()[0], cast={"**": jnp.bfloat16})  # imports
    for options in wanted:
        given: dict[str, Any] = {"only": "**/l*"}
        if "cast" in options:
            given["cast"] = {"**": jnp.bfloat16}
        if "jax" in options:
            given["sharding"] = jax.devices()[0]
        planned = ocp.plan(path, **given).peak_bytes
        gc.collect()
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
        found = ocp.load(path, **given)
        print(resident("VmHWM") - before, planned, flush=True)
        del found


if __name__ == "__main__":
    main(*sys.argv[1:])
