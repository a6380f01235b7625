"""The class of the commands."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import click
from typing_extensions import override

from orbit_ckpt._src.cli.completion import PROGRAM
from orbit_ckpt._src.errors import CheckpointError

_WORDS = "orbit_ckpt.words"


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
        # NumPy starts a thread per core for products of matrices, which no command computes
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        self.implementation()(**given)

    @override
    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        words = list(args)
        try:
            context = super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            advice = self._advice(words)
            if not advice:
                raise
            text = ". ".join([error.format_message().removesuffix("."), *advice])
            raise click.UsageError(text, error.ctx) from error
        context.meta[_WORDS] = words
        return context

    @override
    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (CheckpointError, OSError, ValueError) as error:
            for line in self._advice(ctx.meta[_WORDS]):
                error.add_note(line)
            raise

    def _advice(self, words: Sequence[str]) -> list[str]:
        """Return what a command line like `diff RUN 10 30` was probably meant to be, if any."""
        arguments = [p for p in self.params if isinstance(p, click.Argument)]
        paths = [p for p in arguments if p.name not in {"leaf", "output", "destination"}]
        most = len(words) if any(p.nargs < 0 for p in paths) else len(paths)
        meant = _with_selectors(words, most)
        if meant is None:
            return []
        left = arguments[len(meant) :] if not any(w.startswith("-") for w in meant) else []
        line = shlex.join([PROGRAM, str(self.name), *meant])
        missing = "".join(f" {argument.human_readable_name}" for argument in left)
        return [f"Steps are named with @: {line}{missing}"]


def _with_selectors(words: Sequence[str], most: int) -> list[str] | None:
    """Return words with `RUN 10 30` replaced by `RUN@10 RUN@30`; None if there is nothing such.

    Args:
        words: The words after the name of the command.
        most: Maximum number of steps.
    """
    for i, run in enumerate(words):
        if run.startswith("-") or not ("://" in run or os.path.isdir(run)):
            continue
        end = next((j for j in range(i + 1, len(words)) if not _is_number(words[j])), len(words))
        steps = words[i + 1 : end]
        if 0 < len(steps) <= most:
            return [*words[:i], *(f"{run}@{step}" for step in steps), *words[end:]]
    return None


def _is_number(word: str) -> bool:
    return word.isdecimal() and not os.path.exists(word)
