"""The commands, and what all have in common: options, exit codes, errors."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from orbit_ckpt._src.cli import EXTRA
from orbit_ckpt._src.cli.commands import (
    convert,
    cp,
    diff,
    ls,
    plan,
    plugins,
    prune,
    report,
    rm,
    show,
    stats,
    tree,
    verify,
)
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.text import visible
from orbit_ckpt._src.version import __version__

app = typer.Typer(
    name="orbit-ckpt",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# A new command is a function with Typer's annotations in `commands`.
for command in (
    *(ls, tree, show, stats, diff, verify, plan, report),
    *(convert, cp, rm, prune, plugins),
):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"orbit-ckpt {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Look at checkpoints, check them, convert, copy and delete them. No command touches a device.

    Exit codes: 0, 1 if a command found something (damage, a difference), 2 if it cannot be done.
    """
    del version


def run() -> int:
    """Run the command that the arguments name; return its exit code."""
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    except BrokenPipeError:
        raise
    except (CheckpointError, OSError, ValueError) as error:
        if os.environ.get("ORBIT_CKPT_DEBUG"):
            raise
        sys.stderr.write(visible("".join([f"error: {error}\n", *map(_line, _notes(error))])))
        return 2
    except Exception as error:  # a mistake of ours is no finding, which 1 would mean
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRA:
            raise
        traceback.print_exc()
        return 2
    return 0


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def _line(text: str) -> str:
    return f"  {text}\n"
