"""Shell completion of paths, steps and names of leaves.

It reads file names and one document, and imports nothing that takes long.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)
from typing_extensions import override

PROGRAM = "orbit-ckpt"

VARIABLE = "_ORBIT_CKPT_COMPLETE"
"""Environment variable with which shells ask for completions."""

_BREAKS = ("@", ":")
"""Characters at which bash splits a word, so that it replaces only what follows the last one."""


class JoinedBashComplete(BashComplete):
    """Completion for bash, which splits `RUN@best:loss` into several words."""

    _kept = 0  # characters of the last word that bash keeps

    @override
    def get_completion_args(self) -> tuple[list[str], str]:
        words = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]
        joined: list[str] = []
        for i, word in enumerate(words):
            if i > 1 and (word.startswith(_BREAKS) or words[i - 1].endswith(_BREAKS)):
                joined[-1] += word
            else:
                joined.append(word)
        self._kept = max(map(joined[-1].rfind, _BREAKS)) + 1
        *arguments, last = joined[1:] or [""]
        return split_arg_string(" ".join(arguments)), "".join(split_arg_string(last))

    @override
    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value[self._kept :]}"


SHELLS: dict[str, type[ShellComplete]] = {
    "bash": JoinedBashComplete,
    "fish": FishComplete,
    "zsh": ZshComplete,
}
"""The shells in which completion works."""


def answer_shell(app: click.Command) -> bool:
    """Print completions if a shell asks for them; return whether it does."""
    shell, _, instruction = os.environ.get(VARIABLE, "").partition("_")
    if shell not in SHELLS or instruction != "complete":
        return False
    found = SHELLS[shell](app, {}, PROGRAM, VARIABLE).complete()
    sys.stdout.write(f"{found}\n")
    return True


def complete_file(
    _: click.Context, __: click.Parameter, incomplete: str
) -> Sequence[CompletionItem]:
    """Have the shell complete the path of a file or a directory."""
    return [CompletionItem(incomplete, type="file")]


def complete_path(
    _: click.Context, __: click.Parameter, incomplete: str
) -> Sequence[CompletionItem]:
    """Return the selectors of a run after `@`; shells complete other paths themselves."""
    run, sign, selector = incomplete.rpartition("@")
    if not sign:
        return complete_file(_, __, incomplete)
    names = _selectors(Path(run).expanduser())
    return [CompletionItem(f"{run}@{name}") for name in names if name.startswith(selector)]


def complete_leaf(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> Sequence[CompletionItem]:
    """Return the leaves of the checkpoint that the first argument names."""
    from orbit_ckpt._src.cli.targets import find_checkpoint  # noqa: PLC0415 - see above
    from orbit_ckpt._src.formats.locate import locate  # noqa: PLC0415 - see above

    path = next((ctx.params[n] for n in ("path", "source", "a") if ctx.params.get(n)), None)
    if not path:
        return []
    try:
        tree = locate(find_checkpoint(str(path), quiet=True)).tree
        names = [] if tree is None else list(_leaves(tree))
    except (OSError, ValueError, KeyError, TypeError):  # no completion is no error
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _leaves(tree: Path) -> Iterator[str]:
    """Yield the names of the leaves in a tree of Orbax's format."""
    document: Any = json.loads((tree / "_METADATA").read_bytes())
    for leaf in document["tree_metadata"].values():
        yield "/".join(str(part["key"]) for part in leaf["key_metadata"])


def _selectors(run: Path) -> Iterator[str]:
    """Yield what selects a step of a local run."""
    from orbit_ckpt._src.storage.layout import is_temporary_name, number_in  # noqa: PLC0415 - as above

    try:
        names = [entry.name for entry in os.scandir(run) if not is_temporary_name(entry.name)]
    except OSError:
        return
    steps = sorted({n: name for name in names if (n := number_in(name)) is not None}.items())
    if not steps:
        return
    yield "latest"
    for metric in _metrics(run / steps[-1][1]):
        yield f"best:{metric}"
    for number, _ in steps:
        yield str(number)


def _metrics(step: Path) -> list[str]:
    try:
        found: Any = json.loads((step / "metrics" / "metrics").read_bytes())
        return list(found)
    except (OSError, ValueError, TypeError):
        return []
