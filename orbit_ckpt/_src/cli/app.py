"""The application: registers the commands and turns errors into exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

import click
from typing_extensions import override

from orbit_ckpt._src.cli import EXTRA
from orbit_ckpt._src.cli.commands import COMMANDS
from orbit_ckpt._src.cli.completion import PROGRAM, answer_shell
from orbit_ckpt._src.cli.completion_scripts import install_script, print_script
from orbit_ckpt._src.cli.plugin_commands import PLUGINS, PluginCommand
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.text import visible
from orbit_ckpt._src.version import __version__

_DEBUG = "ORBIT_CKPT_DEBUG"
"""Environment variable: print where errors come from."""


class Commands(click.Group):
    """The commands of this package, and those of plug-ins."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *(name for name in PLUGINS.names() if name not in self.commands)]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = self.commands.get(cmd_name)
        is_plugin = own is None and cmd_name in PLUGINS.names()
        return PluginCommand(cmd_name) if is_plugin else own


def _eager(option: str, text: str, act: Callable[[click.Command], None]) -> click.Option:
    """Return an option that does something with the application and ends the program."""

    def callback(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted and not context.resilient_parsing:
            act(context.command)
            context.exit()

    return click.Option(
        [option], is_flag=True, expose_value=False, is_eager=True, callback=callback, help=text
    )


def _print_version(_: click.Command) -> None:
    sys.stdout.write(f"{PROGRAM} {__version__}\n")


app = Commands(
    name=PROGRAM,
    commands=list(COMMANDS),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    params=[
        _eager("--version", "Print the version.", _print_version),
        _eager("--install-completion", "Install completion for the current shell.", install_script),
        _eager("--show-completion", "Print what --install-completion installs.", print_script),
    ],
    help="""Inspect, verify, convert, copy and delete checkpoints. No command uses a device.

    Exit codes: 0 for success, 1 for a problem found (damage, a difference), 2 for an error.
    """,
)


def run() -> int:
    """Run the command named by the arguments; return its exit code."""
    try:
        if not answer_shell(app):
            with app.make_context(PROGRAM, sys.argv[1:]) as context:
                app.invoke(context)
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - printed
        return _end(error)
    return 0


def _end(error: BaseException) -> int:
    """Print an error; return the exit code, which is not 1 for a bug: that means a problem found.

    Raises:
        ModuleNotFoundError: A package of the extra is missing.
    """
    match error:
        case SystemExit():
            return error.code if isinstance(error.code, int) else 2
        case click.exceptions.Exit():
            return error.exit_code
        case click.Abort() | KeyboardInterrupt():
            sys.stderr.write("\nAborted.\n")
            return 130
        case click.ClickException():
            error.show()
            return error.exit_code
        case CheckpointError() | OSError() | ValueError() if not os.environ.get(_DEBUG):
            sys.stderr.write(visible("".join([f"error: {error}\n", *map(_line, _notes(error))])))
        case ModuleNotFoundError() if error.name in EXTRA:
            raise error
        case _:
            traceback.print_exception(error)
    return 2


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def _line(text: str) -> str:
    return f"  {text}\n"
