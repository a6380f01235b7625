"""What plans, metadata, differences, handles and managers show in a REPL and in a notebook."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.drawing import Branch, Drawing, Table, Tree
from orbit_ckpt.testing.background import held_commits
from tests.support import put

MODEL = {
    "params": {f"layer_{i}": {"kernel": np.zeros((2, 3)), "bias": np.zeros(3)} for i in range(70)},
    "step": 3,
    "name": "x",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a checkpoint of 142 leaves."""
    ocp.save(tmp_path / "model", MODEL, custom_metadata={"git": "4f2c"})
    return tmp_path / "model"


class Text(html.parser.HTMLParser):
    """The text of a page; checks that its elements are nested."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 - of the base class
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


def test_metadata_show_a_tree_with_types_shardings_and_sizes(tmp_path: Path) -> None:
    tree = {"w": put(np.zeros((8, 4), np.float32), "x", None, x=2), "at": [1, "text"], "none": {}}
    ocp.save(tmp_path / "x", tree)
    assert repr(ocp.metadata(tmp_path / "x")).splitlines() == [
        "TreeMetadata: 3 leaves, 136 B",
        "├── at     2 leaves                       8 B",
        "│   ├── 0  int64",
        "│   └── 1  str",
        "├── none   {}",
        "└── w      float32[8, 4]  P('x', None)  128 B",
    ]


def test_leaves_of_metadata_have_the_names_that_patterns_match(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": [np.zeros(2), {}], "b": {"c": "text"}, "d": None})
    leaves = ocp.metadata(tmp_path / "x").leaves
    assert {name: type(leaf).__name__ for name, leaf in leaves.items()} == {
        "a/0": "ArrayMetadata",
        "b/c": "StringMetadata",
    }
    ocp.save(tmp_path / "y", np.zeros(2))
    assert [*ocp.metadata(tmp_path / "y").leaves] == [""]


def test_a_single_leaf_is_a_tree_too(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", np.zeros(2))
    assert "float64[2]" in repr(ocp.metadata(tmp_path / "x"))


def test_reprs_have_at_most_40_lines_and_say_what_is_left_out(model: Path, tmp_path: Path) -> None:
    ocp.save(tmp_path / "other", {**MODEL, "params": {str(i): i for i in range(70)}})
    metadata, plan = ocp.metadata(model), ocp.plan(model)
    difference = ocp.diff(model, tmp_path / "other")
    for value in (metadata, plan, difference, ocp.verify(model)):
        assert 2 <= len(repr(value).splitlines()) <= 40
    assert re.search(r"└── \.\.\. and \d+ more", repr(metadata))
    assert re.search(r"├── layer_0 +2 leaves +72 B\n", repr(metadata))
    assert "custom metadata: {'git': '4f2c'}" in repr(metadata)
    assert re.search(r"\n\.\.\. and \d+ more leaves\n", repr(plan))
    assert "only in a: 140" in repr(difference)
    assert "only in b: 70" in repr(difference)


def test_all_rows_are_shown_on_request(model: Path) -> None:
    lines = ocp.plan(model).describe(most=None).splitlines()
    assert len(lines) == 1 + 142 + 2


def test_a_manager_shows_its_steps(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as run:
        run.save(1, {"w": jnp.zeros(2)}, metrics={"loss": 0.25})
        run.wait_until_finished()
        run.pin(1)
        with held_commits():
            run.save(2, {"w": jnp.zeros(2)})
            lines = repr(run).splitlines()
    assert lines[0] == f"CheckpointManager('{tmp_path}'): 2 steps"
    assert lines[1].split() == ["step", "saved", "(UTC)", "state", "metrics"]
    assert lines[2].split() == ["2", "being", "saved"]
    assert re.fullmatch(r" *1  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  pinned +loss=0\.25", lines[3])


def test_a_manager_without_steps_says_so(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as run:
        assert repr(run) == f"CheckpointManager('{tmp_path}'): 0 steps"


def test_metadata_of_a_step_show_its_items(tmp_path: Path) -> None:
    items = ocp.args.Composite(
        params=ocp.args.StandardSave({"w": np.zeros(2)}), info=ocp.args.JsonSave({"a": 1})
    )
    with ocp.CheckpointManager(tmp_path) as run:
        run.save(1, args=items, metrics={"loss": 0.25})
        run.wait_until_finished()
        metadata = run.metadata(1)
    text = repr(metadata)
    assert text.startswith("StepMetadata of a checkpoint saved at ")
    assert "└── params" in text
    assert "metrics: {'loss': 0.25}" in text
    assert "└── params" in repr(metadata.item_metadata)


def test_a_handle_shows_how_far_it_is(tmp_path: Path) -> None:
    with held_commits():
        handle = ocp.save_async(tmp_path / "x", {"w": np.zeros(1000)})
        assert repr(handle) == f"SaveHandle('{tmp_path}/x', saving)"
    handle.result()
    assert repr(handle) == f"SaveHandle('{tmp_path}/x', saved, 8.0 kB)"


def test_a_checkpointer_shows_its_handler_and_save(tmp_path: Path) -> None:
    assert repr(ocp.PyTreeCheckpointer()) == "PyTreeCheckpointer(PyTreeHandler)"
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "x", {"w": np.zeros(2)})
        assert f"SaveHandle('{tmp_path}/x'" in repr(checkpointer)


def test_pages_of_notebooks_are_escaped(tmp_path: Path) -> None:
    tree = {"<script>alert(1)</script>": np.zeros(2), "a\x1b[2Jb": {"&": 1}}
    ocp.save(tmp_path / "x", tree)
    ocp.save(tmp_path / "y", {"&lt;": 1})
    with ocp.CheckpointManager(tmp_path / "run") as run:
        run.save(1, tree, metrics={"<b>": 1.0})
        run.wait_until_finished()
        values: list[Any] = [
            run,
            run.metadata(1),
            ocp.metadata(tmp_path / "x"),
            ocp.plan(tmp_path / "x"),
            ocp.diff(tmp_path / "x", tmp_path / "y"),
        ]
        pages = [value._repr_html_() for value in values]
    for page in pages:
        assert "<script" not in page
        assert "<b>=" not in page
        assert "\x1b" not in page
        assert Text(page).text
    assert "<script>alert(1)</script>" in Text(pages[2]).text
    assert "&lt;\n" in Text(pages[4]).text


def test_pages_set_no_colours(model: Path) -> None:
    page = ocp.metadata(model)._repr_html_() + ocp.plan(model)._repr_html_()
    assert not re.search(r"color|background", page)


def test_a_page_of_many_leaves_is_bounded(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {str(i): i for i in range(3000)})
    page = ocp.metadata(tmp_path / "x")._repr_html_()
    assert page.count("<li") == 400
    assert "... and 2601 more" in page


def test_a_page_folds_what_a_repr_leaves_out(model: Path) -> None:
    page = ocp.metadata(model)._repr_html_()
    assert page.count("<li") == 3 + 70 + 140
    assert "<details><summary><span" in page.partition("layer_0")[0]  # `params`, of 70 layers
    ocp.save(model.with_name("small"), MODEL["params"]["layer_0"])
    assert "<details>" not in ocp.metadata(model.with_name("small"))._repr_html_()


def test_retention_shows_what_keeps_each_step(tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(preservation_policy=ocp.policies.LatestN(1))
    with ocp.CheckpointManager(tmp_path) as run:
        for step in (1, 2, 3):
            run.save(step, {"w": 1}, force=True)
    with ocp.CheckpointManager(tmp_path, options=options) as run:
        run.pin(1)
        plan = run.retention()
    assert [line.split() for line in repr(plan).splitlines()] == [
        ["RetentionPlan:", "2", "kept,", "1", "deleted"],
        ["step", "kept", "by"],
        ["3", "LatestN(n=1)"],
        ["2", "none,", "deleted"],
        ["1", "Pinned()"],
    ]
    assert "LatestN(n=1)" in Text(plan._repr_html_()).text


def test_small_tables_are_whole_and_large_ones_share_the_rest() -> None:
    small = Table(["n"], [["1"], ["2"]], title="small")
    large = Table(["n"], [[str(i)] for i in range(99)], title="large")
    lines = Drawing("title", [large, small, large]).text(20).splitlines()
    assert len(lines) == 20
    assert lines[-11:-8] == ["small", "  1", "  2"]
    assert [line for line in lines if "more" in line] == ["  ... and 93 more"] * 2


@pytest.mark.parametrize("most", range(3, 60))
def test_a_tree_is_cut_to_the_lines_that_it_may_have(most: int) -> None:
    def layers(count: int) -> list[Branch]:
        return [Branch(str(i), (), [Branch("w", ("1",)), Branch("b")]) for i in range(count)]

    tree = Tree([Branch("a", (), layers(20)), Branch("b", (), layers(4)), Branch("c", ("cell",))])
    lines = Drawing("", [tree]).text(most).splitlines()
    assert len(lines) <= most
    assert {line[4:5] for line in lines if line[0] in "├└"} >= set("abc"[: most - 1])
