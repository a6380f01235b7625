"""The application: registers the commands and turns errors into exit codes."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from orbit_ckpt._src.cli import EXTRA
from orbit_ckpt._src.cli.commands import COMMANDS
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
for command in COMMANDS:
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
    """Inspect, verify, convert, copy and delete checkpoints. No command uses a device.

    Exit codes: 0 for success, 1 for a problem found (damage, a difference), 2 for an error.
    """
    del version


def run() -> int:
    """Run the command named by the arguments; return its exit code."""
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
    except Exception as error:  # a bug must not exit with 1, which means a problem found
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRA:
            raise
        traceback.print_exc()
        return 2
    return 0


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def _line(text: str) -> str:
    return f"  {text}\n"
