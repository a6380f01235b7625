"""Commands of installed packages, which are imported when they run."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import click
from typing_extensions import override

from orbit_ckpt._src.plugins import PluginRegistry


class PluginCommand(click.Command):
    """A command of a plug-in that is not imported yet."""

    def __init__(self, name: str) -> None:
        packages = [e.dist.name for e in entry_points(group=PLUGINS.group, name=name) if e.dist]
        super().__init__(name, help=f"From the package {' or '.join(packages)}.")

    @override
    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        command = PLUGINS.named(str(self.name))
        if command is None:
            raise ValueError(
                f"The command {self.name!r} of a plug-in cannot be used. `orbit-ckpt plugins` says "
                "why."
            )
        return command.make_context(info_name, args, parent, **extra)


class TyperCommand(click.Command):
    """A command of typer, whose newer versions contain a click of their own.

    Contexts and exceptions of the two do not mix, so that it parses its arguments and exits itself.
    """

    def __init__(self, command: Any) -> None:
        super().__init__(command.name, add_help_option=False)
        self._command = command

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = args
        return args

    @override
    def invoke(self, ctx: click.Context) -> None:
        self._command.main(ctx.args, prog_name=ctx.command_path)


def as_command(plugin: object) -> click.Command:
    """Return the command that a plug-in provides.

    Raises:
        TypeError: It is no `click.Command`, no `typer.Typer` and no function.
    """
    if isinstance(plugin, click.Command):
        return plugin
    if not callable(plugin):
        raise TypeError(f"{plugin!r} is no click.Command, no typer.Typer and no function")
    import typer.main  # noqa: PLC0415 - only packages whose commands are made with it need it

    made = plugin
    if not isinstance(made, typer.Typer):
        made = typer.Typer(rich_markup_mode=None)
        made.command()(plugin)
    command: object = typer.main.get_command(made)
    return command if isinstance(command, click.Command) else TyperCommand(command)


PLUGINS = PluginRegistry[click.Command]("orbit_ckpt.cli", as_command)
"""Commands of installed packages; the entry points have their names."""
