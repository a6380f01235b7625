"""The class of the commands."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import click


class LazyCommand(click.Command):
    """A command that imports its implementation when it runs.

    Most implementations import JAX, which takes a second; help, version and completion need none.

    Attributes:
        target: The implementation: a module of this package and a function, `MODULE:FUNCTION`. Its
            parameters are those of the command.
    """

    def __init__(self, target: str, *params: click.Parameter, text: str, example: str) -> None:
        """Make a command with the name of the function.

        Args:
            target: See above.
            params: Arguments and options.
            text: Help; its first line is the summary.
            example: A command line that is shown at the end of the help.
        """
        self.target = target
        super().__init__(
            target.rpartition(":")[2],
            params=list(params),
            help=text,
            short_help=text.partition("\n")[0],
            epilog=f"Example: {example}",
            callback=self._run,
        )

    def implementation(self) -> Callable[..., None]:
        """Import and return the function."""
        module, _, function = self.target.partition(":")
        return getattr(import_module(f"orbit_ckpt._src.cli.{module}"), function)

    def _run(self, **given: object) -> None:
        self.implementation()(**given)
