"""The benchmarks draw the tables of the documentation and leave the text around them alone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.operations import PARTIAL, RESHARD
from benchmarks.pages import PAGES, PageError, redraw
from benchmarks.report import training_table
from benchmarks.results import Laps, Results, Training, TrainingRow
from benchmarks.suites import SUITES

TABLE = re.compile(r"<!-- table: (\w+) -->(.*?)<!-- end of table -->", re.DOTALL)
LIBRARIES = ("orbit_ckpt", "orbax")


def tables_in(page: Path) -> Mapping[str, str]:
    return dict(TABLE.findall(page.read_text()))


@pytest.mark.matrix
@pytest.mark.slow
def test_one_command_draws_every_table_of_the_documentation(tmp_path: Path) -> None:
    pages = [Path(shutil.copy(page, tmp_path)) for page in PAGES]
    again = Path(shutil.copy(PAGES[0], tmp_path / "again.md"))
    results_file = tmp_path / "results.json"
    storage = ["--storage", str(tmp_path / "storage")]
    drawn = [str(page) for page in pages]
    assert main(["--small", *storage, "--json", str(results_file), "--docs", *drawn]) == 0

    for page, original in zip(pages, PAGES, strict=True):
        assert TABLE.split(page.read_text())[::3] == TABLE.split(original.read_text())[::3]
        assert set(tables_in(page)) == set(tables_in(original))
        for name, table in tables_in(page).items():
            assert name == "run" or table.count("\n| ") > 2, name
    assert "--small" in tables_in(pages[0])["run"]
    speedup = tables_in(pages[0])["against_orbax"]
    assert re.search(r"\| 5,000 leaves of 4 KB and 128 B \| [\d.]+x / [\d.]+x \(", speedup)

    assert main(["--replay", str(results_file), "--docs", str(again)]) == 0
    assert again.read_text() == pages[0].read_text()
    check_results(Results.read(results_file))


def check_results(results: Results) -> None:
    assert {group.suite for group in results.groups} == set(SUITES) - {"usual", "training"}
    loads = [r for g in results.groups for r in g.rows if r.operation in {*RESHARD, *PARTIAL}]
    done = {(row.operation, row.contender) for row in loads if row.seconds}
    assert done >= {(name, "orbit_ckpt") for name in (*RESHARD, *PARTIAL)}
    assert done >= {(name, "orbax") for name in (*RESHARD, *PARTIAL) if name != "load_rows"}
    ours = [row for row in loads if row.contender == "orbit_ckpt"]
    assert all(row.read_bytes[0] >= row.asked_bytes // 8 for row in ours)  # at most 8 replicas
    for training in results.trainings:
        assert [row.contender for row in training.rows] == list(LIBRARIES)
        assert all(row.is_done and len(row.later_blocked_s) == 1 for row in training.rows)


def test_figures_of_training_are_differences_in_one_process() -> None:
    alone = Laps(1.0, 1.5, steps=[0.25] * 4, blocked=[])
    first = Laps(1.8, 2.5, steps=[0.25, 0.5, 0.25, 0.3], blocked=[0.3, 0.1])
    second = Laps(1.4, 2.0, steps=[0.25, 0.4, 0.25, 0.4], blocked=[0.05, 0.1])
    row = TrainingRow("orbax", alone=[alone, alone], saving=[first, second], every=2)
    assert row.later_blocked_s == [0.1, 0.05, 0.1]
    assert row.steps_after_s == [0.5, 0.3, 0.4, 0.4]
    training = Training("small-1000", True, "memory", False, 4, leaves=4, nbytes=100, rows=[row])
    line = " ".join(training_table(training).split("\n")[2].split())
    added, blocked = "600 ms, 400 ms 750 ms, 500 ms", "300 ms 100 ms, 50.0 ms"
    assert line == f"orbax 1,000 ms {added} {blocked} 250 ms 400 ms"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Title\n", "has no tables"),
        ("<!-- table: unknown -->\n<!-- end of table -->\n", "no such table: 'unknown'"),
        ("<!-- table: times -->\n| old |\n", "'times' has no end"),
    ],
)
def test_page_with_a_mistake_is_refused_and_no_page_changed(
    tmp_path: Path, text: str, message: str
) -> None:
    good, bad = tmp_path / "good.md", tmp_path / "bad.md"
    good.write_text("<!-- table: times -->\nold\n<!-- end of table -->\n")
    bad.write_text(text)
    with pytest.raises(PageError, match=message):
        redraw([good, bad], {"times": "| new |"})
    assert "old" in good.read_text()


def test_table_without_results_stays_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "a\n<!-- table: {} -->\n{}\n<!-- end of table -->\nb\n"
    page.write_text(text.format("times", "old") + text.format("leaves", "old"))
    redraw([page], {"times": "", "leaves": "| new |"})
    assert page.read_text() == text.format("times", "old") + text.format("leaves", "\n| new |\n")
