"""The command line `orbit-ckpt`: look at checkpoints, check them, copy and delete them.

It needs the extra `cli`. No command touches a device.
"""

from __future__ import annotations

import io
import os
import sys
from typing import cast

_ADVICE = "The command line needs more packages: pip install 'orbit-ckpt[cli]'."


def main() -> None:
    """Run a command; exits with 0, 1 if it found something, 2 if it cannot be done."""
    try:
        from orbit_ckpt.cli.app import run  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        sys.stderr.write(f"error: {error}. {_ADVICE}\n")
        sys.exit(2)
    try:
        out = cast("io.TextIOWrapper[io.BufferedWriter]", sys.stdout)
        out.reconfigure(errors="backslashreplace")  # paths need not be text
        status = run()
        sys.stdout.flush()
    except BrokenPipeError:  # `orbit-ckpt tree ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    sys.exit(status)
