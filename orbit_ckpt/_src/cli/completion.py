"""Shell completion of paths, steps and names of leaves.

It reads file names and one document, and imports nothing that takes long.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

_BREAKS = ("@", ":")
"""Characters at which bash splits a word, so that it replaces only what follows the last one."""

_SHELL = "_ORBIT_CKPT_COMPLETE"


def rejoin_words() -> int:
    """Undo bash's splitting of `RUN@best:loss` into several words, in the environment.

    Returns:
        How many characters of the last word bash keeps, so that completions must not repeat them.
    """
    words = os.environ.get("COMP_WORDS", "").split("\n")
    if os.environ.get(_SHELL) != "complete_bash" or len(words) < 2:
        return 0
    current = int(os.environ.get("COMP_CWORD", len(words) - 1))
    joined: list[str] = []
    for i, word in enumerate(words[: current + 1]):
        if i > 1 and (word.startswith(_BREAKS) or words[i - 1].endswith(_BREAKS)):
            joined[-1] += word
        else:
            joined.append(word)
    os.environ["COMP_WORDS"] = "\n".join(joined)
    os.environ["COMP_CWORD"] = str(len(joined) - 1)
    return max(map(joined[-1].rfind, _BREAKS)) + 1


def complete_rest(app: Callable[[], object], kept: int) -> None:
    """Run a completion whose results bash wants without their first characters."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        app()
    sys.stdout.write("".join(f"{line[kept:]}\n" for line in out.getvalue().splitlines()))


def complete_path(incomplete: str) -> list[str]:
    """Return the selectors of a run after `@`; shells complete other paths themselves."""
    run, sign, selector = incomplete.rpartition("@")
    if not sign:
        return _entries(incomplete) if os.environ.get(_SHELL) == "complete_fish" else []
    found = [f"{run}@{name}" for name in _selectors(Path(run).expanduser())]
    return [text for text in found if text.startswith(f"{run}@{selector}")]


def complete_leaf(ctx: typer.Context, incomplete: str) -> list[str]:
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
    return [name for name in names if name.startswith(incomplete)]


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


def _entries(incomplete: str) -> list[str]:
    """Return the paths that begin with a text, directories with a slash."""
    folder, _, start = incomplete.rpartition("/")
    where = os.path.expanduser(folder) or ("/" if incomplete.startswith("/") else ".")
    prefix = incomplete[: len(incomplete) - len(start)]
    try:
        entries = sorted(os.scandir(where), key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        f"{prefix}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(start) and (start or not entry.name.startswith("."))
    ]
