"""What only people see: colours and progress, on a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.checkpointer.statistics import measure_leaves, open_leaves
from tests.cli.conftest import Run, Terminal

pytestmark = pytest.mark.slow

OnTerminal = Callable[..., Terminal]

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint that takes long enough for a bar to be drawn."""
    path = tmp_path_factory.mktemp("large") / "checkpoint"
    rng = np.random.default_rng(0)
    ocp.save(path, {f"w{i}": rng.standard_normal((1000, 1000)) for i in range(8)})
    return path


@pytest.mark.parametrize(
    ("command", "title"), [("verify", "Checking"), ("stats", "Reading"), ("cp", "Copying")]
)
def test_long_work_shows_bytes_rate_and_time_left(
    command: str, title: str, large: Path, tmp_path: Path, cli: Run, on_terminal: OnTerminal
) -> None:
    args = [command, large, *([tmp_path / "copy"] if command == "cp" else [])]
    child = on_terminal(*args)
    child.expect(title)
    status, text = child.end()
    shown = ESCAPE.sub("", text)
    assert status == 0
    assert re.search(r"\d+(\.\d+)?/\d+(\.\d+)? MB", shown), shown  # done of all
    assert re.search(r"\d+:\d\d:\d\d", shown), shown  # time left
    if command == "cp":
        args[-1] = tmp_path / "other"
    piped = cli(*args)
    assert title not in piped.out + piped.err
    assert "\x1b" not in piped.out + piped.err


def test_progress_goes_on_within_a_leaf_and_an_error_ends_all(large: Path) -> None:
    leaves = open_leaves(str(large))
    told: list[tuple[int, int]] = []
    measure_leaves(leaves, 16_000_000, lambda *done: told.append(done))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (64_000_000, 64_000_000)
    assert len(told) > 2 * len(leaves)

    def fail(done: int, _: int) -> None:
        told.append((done, 0))
        raise RuntimeError("enough")

    told.clear()
    with pytest.raises(RuntimeError, match="enough"):
        measure_leaves(leaves, 16_000_000, fail)
    assert len(told) <= len(leaves)  # none goes on after it


def test_tables_have_colours_on_a_terminal_only(
    run_directory: Path, cli: Run, on_terminal: OnTerminal
) -> None:
    status, shown = on_terminal("ls", run_directory).end()
    assert status == 0
    assert "\x1b[1m" in shown
    plain = [line.rstrip() for line in ESCAPE.sub("", shown).splitlines()]
    assert plain == cli("ls", run_directory).out.splitlines()


def test_names_are_printed_as_they_are(tmp_path: Path, cli: Run, on_terminal: OnTerminal) -> None:
    ocp.save(tmp_path / "checkpoint", {"[red]w[/red]": np.ones(2), ":smile:": 1})
    _, shown = on_terminal("tree", tmp_path / "checkpoint").end()
    assert "[red]w[/red]" in shown
    assert ":smile:" in shown
    assert "[red]w[/red]" in cli("tree", "checkpoint").out


def test_deleting_asks_first(own_run: Path, on_terminal: OnTerminal) -> None:
    for answer, expected in (("n\n", True), ("\4", True), ("y\n", False)):  # \4: end of input
        child = on_terminal("rm", own_run / "20")
        child.expect("Delete .*\\?")
        child.send(answer)
        status, _ = child.end()
        assert status == (2 if expected else 0)
        assert (own_run / "20").exists() is expected


def test_an_interrupt_leaves_no_copy(large: Path, tmp_path: Path, on_terminal: OnTerminal) -> None:
    child = on_terminal("cp", large, tmp_path / "copies" / "a")
    child.expect("Copying")
    child.interrupt()
    status, _ = child.end()
    assert status != 0 or (tmp_path / "copies/a").is_dir()
    if (tmp_path / "copies").exists():
        left = [path.name for path in (tmp_path / "copies").iterdir()]
        assert left in ([], ["a"])
        assert "a" not in left or ocp.verify(tmp_path / "copies/a")
