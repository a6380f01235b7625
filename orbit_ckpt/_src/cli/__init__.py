"""The command line `orbit-ckpt`: inspect, verify, copy and delete checkpoints.

It needs the extra `cli`. No command uses a device.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import cast

EXTRA = ("click", "rich")
"""The packages of the extra `cli`."""

_ADVICE = "The command line needs more packages: pip install 'orbit-ckpt[cli]'."


def main() -> None:
    """Run a command; exit with 0, 1 if it found a problem, 2 if it failed."""
    gc.set_threshold(100_000)  # importing makes many objects and no garbage
    try:
        from orbit_ckpt._src.cli.app import run  # noqa: PLC0415 - an extra

        out = cast("io.TextIOWrapper[io.BufferedWriter]", sys.stdout)
        out.reconfigure(errors="backslashreplace")  # paths need not be valid text
        status = run()
        sys.stdout.flush()
    except BrokenPipeError:  # `orbit-ckpt tree ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        sys.stderr.write(f"error: {error}. {_ADVICE}\n")
        status = 2
    sys.exit(status)
