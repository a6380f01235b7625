"""Runs commands, each in a process of its own that need not import JAX again.

Reads one JSON object a line, `args`, `cwd`, `out` and `err`; writes the exit code of the command.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

import orbit_ckpt
from orbit_ckpt._src.cli import app, check, convert, inspect, main, manage, report, values

assert all((app, check, convert, inspect, manage, report, values))  # what commands need
for name in orbit_ckpt.__all__:
    getattr(orbit_ckpt, name)  # is imported when it is asked for


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            run(request)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(request: dict[str, str]) -> None:
    os.chdir(request["cwd"])
    for number, file, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, request["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        os.dup2(os.open(file, flags), number)
    sys.argv = ["orbit-ckpt", *request["args"]]
    code: object = 1
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - what Python does at the end
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    serve()
