"""Run commands, each in a forked process that imports nothing again.

Reads one JSON object per line and writes the exit code of the command: `args`, `cwd`, variables
`env` to set, and the files `out` and `err`, or `terminal`, the terminal that the process gets.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import sys
import termios
import threading
import traceback
from typing import Any

from orbit_ckpt import _src
from orbit_ckpt._src.cli import main


def serve() -> None:
    warm_up()
    for line in sys.stdin:
        request = json.loads(line)
        files = open_files(request)
        child = os.fork()
        if child == 0:
            run(request, files)
        for file in files:
            os.close(file)
        print("started", flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def open_files(request: dict[str, Any]) -> list[int]:
    """Open what the process gets as standard input, output and error."""
    if "terminal" in request:
        return [os.open(request["terminal"], os.O_RDWR | os.O_NOCTTY) for _ in range(3)]
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    outputs = [os.open(request[name], write) for name in ("out", "err")]
    return [os.open(os.devnull, os.O_RDONLY), *outputs]


def warm_up() -> None:
    """Import all that commands need, Rich for their progress included."""
    for name in ("console", "progress", "table", "text"):
        importlib.import_module(f"rich.{name}")
    for module in pkgutil.walk_packages(_src.__path__, f"{_src.__name__}."):
        importlib.import_module(module.name)
    importlib.import_module("tests.preload_s3")
    for command in ("plugins", "--help"):
        sys.argv = ["orbit-ckpt", command]
        out = io.TextIOWrapper(io.BytesIO())
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main()
    assert threading.active_count() == 1  # threads do not survive a fork
    gc.freeze()


def run(request: dict[str, Any], files: list[int]) -> None:
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    if "PYTHONPATH" in request["env"]:  # else too late for this process
        sys.path[:0] = request["env"]["PYTHONPATH"].split(os.pathsep)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if "terminal" in request:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # the terminal then sends interrupts
        os.environ["TERM"] = "xterm-256color"
    # buffered as files or terminals are
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
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
