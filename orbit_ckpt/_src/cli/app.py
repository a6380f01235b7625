"""The application: registers the commands and turns errors into exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typing_extensions import override

from orbit_ckpt._src.cli import EXTRA
from orbit_ckpt._src.cli.commands import COMMANDS
from orbit_ckpt._src.cli.completion import complete_rest, rejoin_words
from orbit_ckpt._src.cli.examples import EXAMPLES
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.plugins import PluginRegistry
from orbit_ckpt._src.text import visible
from orbit_ckpt._src.version import __version__

# Contexts and commands are of click, which newer typer contains and older typer imports.
Click = Any


class Commands(TyperGroup):
    """The commands of this package, and those of plug-ins, which are imported when they run."""

    @override
    def list_commands(self, ctx: Click) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in PLUGINS.names() if name not in own)]

    @override
    def get_command(self, ctx: Click, cmd_name: str) -> Click:
        own = super().get_command(ctx, cmd_name)
        is_plugin = own is None and cmd_name in PLUGINS.names()
        return PluginCommand(cmd_name) if is_plugin else own


class PluginCommand(TyperCommand):
    """A command of a plug-in that is not imported yet."""

    def __init__(self, name: str) -> None:
        packages = [e.dist.name for e in entry_points(group=PLUGINS.group, name=name) if e.dist]
        super().__init__(name, help=f"From the package {' or '.join(packages)}.")

    @override
    def make_context(
        self, info_name: str | None, args: list[str], parent: Click = None, **extra: Any
    ) -> Click:
        command = PLUGINS.named(str(self.name))
        if command is None:
            raise ValueError(
                f"The command {self.name!r} of a plug-in cannot be used. `orbit-ckpt plugins` says "
                "why."
            )
        return command.make_context(info_name, args, parent, **extra)


def as_command(plugin: object) -> Click:
    """Return the command that a plug-in provides: a function like ours, or a `typer.Typer`.

    Raises:
        TypeError: It provides something else.
    """
    if isinstance(plugin, typer.Typer):
        return get_command(plugin)
    if not callable(plugin):
        raise TypeError(f"{plugin!r} is no function and no typer.Typer")
    made = typer.Typer(rich_markup_mode=None)
    made.command()(plugin)
    return get_command(made)


PLUGINS = PluginRegistry[Click]("orbit_ckpt.cli", as_command)
"""Commands of installed packages; the entry points have their names."""

app = typer.Typer(
    name="orbit-ckpt",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    summary = (command.__doc__ or "").partition("\n")[0]
    example = EXAMPLES.get(command.__name__)
    app.command(short_help=summary, epilog=f"Example: {example}" if example is not None else None)(
        command
    )


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
    kept = rejoin_words()
    try:
        if kept:
            complete_rest(app, kept)
        else:
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
