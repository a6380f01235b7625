"""Print the cost of `import orbit_ckpt` after `import jax`, in milliseconds of processor time.

Usage: python -m benchmarks.import_time [module ...]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

RUNS = 15
# Installed packages have bytecode; without it, this would measure the compiler.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def import_ms(module: str) -> float:
    """Return the import time of `module` in a fresh process that has imported JAX."""
    script = (
        "import jax, time; start = time.process_time(); "
        f"import {module}; print(time.process_time() - start)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(result.stdout) * 1e3


def main() -> None:
    """Measure the modules alternately, so that a busy moment of the machine hits all of them."""
    modules = sys.argv[1:] or ["orbit_ckpt", "tensorstore"]
    times: dict[str, list[float]] = {module: [] for module in modules}
    for module in modules * RUNS:
        times[module].append(import_ms(module))
    for module, values in times.items():
        print(f"{module:24} median {statistics.median(values):6.1f}   best {min(values):6.1f}")


if __name__ == "__main__":
    main()
