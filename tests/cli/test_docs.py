"""What docs/reference/cli.md shows is what the commands print.

`ORBIT_CKPT_WRITE_DOCS=1 pytest tests/cli/test_docs.py` writes the page anew.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from orbit_ckpt._src.cli.app import app
from tests.cli.conftest import Run
from tests.programs import run_script
from tests.support import damage_chunk

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "cli.md"
SHOWN_ROOT = "/home/me"

_CONSOLE = re.compile(
    r"(?<=^```console\n)(\$ orbit-ckpt (.*?)\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL
)
_CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d"), "2026-11-22 12:00:00"),
    (re.compile(r"d/[0-9a-f]{32}"), "d/0123456789abcdef0123456789abcdef"),
    (re.compile(r"at byte \d+"), "at byte 0"),
)


def normalized(text: str) -> str:
    """Return a text without what changes from run to run: times, random names, sizes of files."""
    for pattern, same in _CHANGING:
        text = pattern.sub(same, text)
    text = re.sub(r"[\d.]+ k?B\b", "1 kB", text)
    text = re.sub(r"bytes checked: \d+", "bytes checked: 1", text)
    return "\n".join(re.sub(" {2,}", "  ", line).strip() for line in text.splitlines())


def outputs(page: str, root: Path, cli: Run) -> Iterator[str]:
    """Run the commands of a page one after the other; yield what they print."""
    (python,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (rules,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (root / "rules.toml").write_text(rules)
    run_script(python, directory=root, environment={"XLA_FLAGS": ""}).check_returncode()
    verified = 0
    for _, command, _ in _CONSOLE.findall(page):
        verified += command == "verify run"
        if command == "verify run" and verified == 2:
            damage_chunk(root / "run/200/default", "params.layer_0.kernel/c/0/0")
        done = cli(*shlex.split(command), status=None)
        yield (done.out + done.err).replace(str(root.resolve()), SHOWN_ROOT)


@pytest.mark.slow
def test_the_page_shows_what_the_commands_print(tmp_path: Path, cli: Run) -> None:
    page = PAGE.read_text()
    printed = list(outputs(page, tmp_path, cli))
    if os.environ.get("ORBIT_CKPT_WRITE_DOCS"):
        rest = iter(printed)
        PAGE.write_text(_CONSOLE.sub(lambda found: found[1] + next(rest), page))
        return
    shown = [text for _, _, text in _CONSOLE.findall(page)]
    assert len(shown) == len(printed) >= 14
    for (_, command, text), actual in zip(_CONSOLE.findall(page), printed, strict=True):
        assert normalized(text) == normalized(actual), command


def test_every_command_and_option_is_on_the_page() -> None:
    page = PAGE.read_text()
    for name in app.commands:
        assert f"\n## {name}\n" in page
        options = {f"--{o}" for o in re.findall(r"--([a-z-]+)", _help(name))} - {"--help"}
        if "--json" in options:
            assert re.search(rf"^\| .*`{name}`.* \| ", page, re.MULTILINE)
        missing = [option for option in options if option not in page]
        assert missing == [], name


def _help(command: str) -> str:
    result = CliRunner().invoke(app, [command, "--help"], terminal_width=200)
    assert result.exit_code == 0
    return result.output
