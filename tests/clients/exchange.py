"""Compare what a program does with Orbax and with this library installed as Orbax.

`python tests/clients/exchange.py NAME` runs a file of `programs` so, and prints the differences.
"""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs")

Run = Callable[..., str]
"""Runs a program with arguments and returns what it prints."""


def exchange(program: Path, directory: Path, *, orbax: Run, ours: Run) -> list[str]:
    """Let both libraries save, and each restore what both have saved.

    Args:
        program: A file of `programs`.
        directory: An empty directory.
        orbax: Runs the program with Orbax.
        ours: Runs it with this library.

    Returns:
        The differences, as lines; none if all results are equal.
    """
    by_orbax, by_ours = directory / "orbax", directory / "ours"
    for path in (by_orbax, by_ours):
        path.mkdir()
    commands = ["save", by_orbax, "restore", by_orbax]
    saved, restored = _results(orbax(program, *commands), "orbax")
    commands = ["save", by_ours, "restore", by_ours, "restore", by_orbax]
    our_saved, our_restored, ours_of_orbax = _results(ours(program, *commands), "orbit_ckpt")
    (orbax_of_ours,) = _results(orbax(program, "restore", by_ours), "orbax")
    return [
        *_compare("saved", saved, our_saved),
        *_compare("restored", restored, our_restored),
        *_compare("restored by orbit_ckpt from Orbax's checkpoints", restored, ours_of_orbax),
        *_compare("restored by Orbax from orbit_ckpt's checkpoints", restored, orbax_of_ours),
    ]


def run_fresh(*command: object) -> str:
    """Run Python with arguments and return what it prints.

    Raises:
        RuntimeError: It failed.
    """
    arguments = [sys.executable, *map(str, command)]
    result = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=600)
    if result.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{result.stderr}")
    return result.stdout


def run_as_orbax(*command: object) -> str:
    """Run a program with this library installed as Orbax and return what it prints."""
    return run_fresh("-m", "orbit_ckpt.as_orbax", *command)


def _results(output: str, library: str) -> list[Any]:
    """Return the results of a program's commands.

    Raises:
        ValueError: The program used another library.
    """
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"library"')]
    if {line["library"] for line in lines} != {library}:
        raise ValueError(f"expected results of {library}, found {output}")
    return [line["result"] for line in lines]


def _compare(what: str, expected: object, found: object) -> list[str]:
    before, after = (json.dumps(result, indent=1).splitlines() for result in (expected, found))
    names = f"{what}: expected", f"{what}: found"
    return [*difflib.unified_diff(before, after, *names, lineterm="")]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        differences = exchange(
            PROGRAMS / f"{sys.argv[1]}.py", Path(temporary), orbax=run_fresh, ours=run_as_orbax
        )
    print(*differences or ["no differences"], sep="\n")
    raise SystemExit(bool(differences))
