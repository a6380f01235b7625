"""The scripts that make shells ask for completions."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from orbit_ckpt._src.cli.completion import PROGRAM, SHELLS, VARIABLE

_BASH_STARTUP = f"source ~/.bash_completions/{PROGRAM}.sh\n"
_ZSH_STARTUP = "fpath+=~/.zfunc; autoload -Uz compinit; compinit\n"


def print_script(app: click.Command) -> None:
    """Print the script for the current shell.

    Raises:
        ValueError: Completion does not work in this shell.
    """
    sys.stdout.write(_script(app, _current_shell()))


def install_script(app: click.Command) -> None:
    """Write the script for the current shell where it finds it, and say where.

    Raises:
        ValueError: Completion does not work in this shell.
    """
    shell, home = _current_shell(), Path.home()
    script = _script(app, shell)
    if shell == "fish":
        file = home / f".config/fish/completions/{PROGRAM}.fish"
    elif shell == "zsh":
        file = home / f".zfunc/_{PROGRAM}"
        _append(home / ".zshrc", _ZSH_STARTUP)
    else:
        file = home / f".bash_completions/{PROGRAM}.sh"
        _append(home / ".bashrc", _BASH_STARTUP)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script)
    sys.stdout.write(f"{file}: completion for {shell}, from the next start of the shell\n")


def _current_shell() -> str:
    shell = os.path.basename(os.environ.get("SHELL", ""))
    if shell not in SHELLS:
        raise ValueError(
            f"The variable SHELL names {shell or 'nothing'!r}; completion works in "
            f"{', '.join(SHELLS)}. Set it, as in SHELL=bash {PROGRAM} --show-completion."
        )
    return shell


def _script(app: click.Command, shell: str) -> str:
    return SHELLS[shell](app, {}, PROGRAM, VARIABLE).source()


def _append(file: Path, line: str) -> None:
    """Append a line to a file that lacks it."""
    before = file.read_text() if file.exists() else ""
    if line not in before:
        separator = "" if not before or before.endswith("\n") else "\n"
        file.write_text(f"{before}{separator}{line}")
