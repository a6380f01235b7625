"""The page about a checkpoint or a run: what it says, in one file that fetches nothing."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.report.page import write_report
from orbit_ckpt.errors import CheckpointNotFoundError, StorageError
from tests.cli.conftest import Run
from tests.support import put

NASTY = "</script><img src=x onerror=document.title=1>"
_EMPTY = frozenset({"meta", "link", "img", "input", "br", "hr", "col"})


class Elements(HTMLParser):
    """The elements of a page, its title, and whether all that are opened are closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.title = ""
        self.is_balanced = True
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.is_balanced &= not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.is_balanced &= bool(self._open) and self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "title":
            self.title += data


def data_of(page: str) -> dict[str, Any]:
    """Return the JSON in a page, leaves as objects by name."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["leaves"]]
    data["leaves"] = {row["name"]: row for row in rows}
    blobs = dict(re.findall(r'<script type="text/plain" id="([\w-]+)">(.*?)</script>', page))
    dtypes = {"matrix": data["matrix_dtype"], "edges": "f8", "counts": "f4"}
    data["blobs"] = {
        name: np.frombuffer(base64.b64decode(text), f"<{dtypes[name.split('-')[0]]}")
        for name, text in blobs.items()
    }
    return data


def page_of(path: Path, file: Path, **options: Any) -> dict[str, Any]:
    """Write a page and return its data."""
    write_report(path, file, **options)
    return data_of(file.read_text())


def matrix_of(data: dict[str, Any], name: str) -> dict[str, list[float]]:
    """Return a matrix as the numbers of each leaf, step by step."""
    matrix = data["blobs"][f"matrix-{name}"].reshape(len(data["measured"]), -1)
    return dict(zip(data["leaves"], matrix.T.tolist(), strict=True))


def damage_chunk(step: Path) -> None:
    """Change one byte in the middle of the largest data file of a step."""
    file = max(step.rglob("d/*"), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    """Return a checkpoint whose names try to leave their places."""
    tree = {
        NASTY: np.ones(3000, np.float32),
        "a": {"kernel": np.arange(12.0).reshape(3, 4), "bias": np.array([1.0, np.nan])},
        "b": {"kernel": np.full((10, 10), 7, np.int32)},
        "{{data}}": {"__proto__": np.array([2**62]), "constructor": "{{title}}"},
    }
    ocp.save(tmp_path / NASTY.replace("/", ""), tree, custom_metadata={"note": NASTY})
    return tmp_path / NASTY.replace("/", "")


def test_the_page_of_a_run_has_its_steps_and_the_leaves_of_the_newest(
    cli: Run, run_directory: Path, tmp_path: Path
) -> None:
    printed = cli("report", run_directory, "-o", "report.html", "--json").json
    page = (tmp_path / "report.html").read_text()
    assert printed["bytes"] == len(page.encode())
    data = data_of(page)
    assert [step["step"] for step in data["history"]] == [10, 20, 30]
    assert data["history"][1]["metrics"] == {"loss": 0.25}
    assert [step["pinned"] for step in data["history"]] == [True, False, False]
    assert data["history"][data["shown"]]["name"] == "30"
    stats = cli("stats", run_directory / "30", "--json").json["leaves"]
    for row in stats:
        leaf = data["leaves"][row["name"]]
        assert all(leaf[name] == row[name] for name in ("min", "max", "mean", "l2", "nans", "infs"))


def test_the_leaves_of_a_page_are_those_of_the_metadata(nasty: Path, tmp_path: Path) -> None:
    write_report(nasty, tmp_path / "report.html")
    data = data_of((tmp_path / "report.html").read_text())
    known = {
        "/".join(str(key.key) for key in path): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(ocp.metadata(nasty).tree)[0]
    }
    assert set(data["leaves"]) == set(known)
    for name, leaf in data["leaves"].items():
        if leaf["kind"] == "string":
            continue
        wanted = known[name]
        assert (leaf["dtype"], tuple(leaf["shape"])) == (str(wanted.dtype), wanted.shape)
        assert leaf["nbytes"] == wanted.nbytes
    assert data["leaves"]["{{data}}/__proto__"]["max"] == str(2**62)
    assert data["custom_metadata"] == {"note": NASTY}
    assert data["history"] == []


def test_the_page_is_one_file_that_fetches_nothing(nasty: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert write_report(nasty, file, statistics=False) == file.stat().st_size
    text = file.read_text()
    page = Elements(text)
    assert page.is_balanced
    assert not [tag for tag, attrs in page.tags if {"src", "data"} & attrs.keys()]
    assert {attrs["href"] for _, attrs in page.tags if "href" in attrs} == {"#search"}
    assert not {"img", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp|innerHTML", text)
    policy = next(a for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert str(policy["content"]).startswith("default-src 'none';")
    assert page.title.startswith(nasty.name)
    assert data_of(text)["leaves"]["a/kernel"]["min"] is None


def test_a_page_of_another_programs_checkpoint(tmp_path: Path) -> None:
    sample = Path(__file__).parents[1] / "formats" / "samples" / "eformer" / "run-20_structured"
    write_report(sample, tmp_path / "report.html")
    data = data_of((tmp_path / "report.html").read_text())
    assert data["leaves"]["model/dense/kernel"]["shape"] == [3, 4]
    assert data["leaves"]["tx/count"]["max"] == 5


def test_a_page_that_cannot_be_written_and_what_is_no_checkpoint(nasty: Path) -> None:
    with pytest.raises(StorageError, match="no file can be written there"):
        write_report(nasty, nasty / "none" / "report.html")
    with pytest.raises(CheckpointNotFoundError):
        write_report(nasty / "none", nasty.parent / "report.html")
    assert not (nasty.parent / "report.html").exists()


def make_run(root: Path, *trees: object) -> Path:
    """Save a run of steps 1, 2, ..."""
    with ocp.CheckpointManager(root) as run:
        for step, tree in enumerate(trees, start=1):
            run.save(step, tree, metrics={"loss": 1 / step})
    return root


def test_every_step_has_its_statistics_and_the_change_from_the_one_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((11, 50)).astype(np.float32)
    trees = [{"w": value, "same": np.ones(3), "n": i} for i, value in enumerate(values)]
    data = page_of(make_run(tmp_path / "run", *trees), tmp_path / "r.html", steps=11)
    assert data["measured"] == list(range(11))
    wide = values.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1)
    moved = np.linalg.norm(np.diff(wide, axis=0), axis=1) / norms[:-1]
    np.testing.assert_allclose(matrix_of(data, "l2")["w"], norms, rtol=1e-6)
    changes = matrix_of(data, "change")
    np.testing.assert_allclose(changes["w"][1:], moved, rtol=1e-6)
    assert np.isnan(changes["w"][0])
    assert changes["same"][1:] == [0.0] * 10
    assert changes["n"][1:3] == [np.inf, 1.0]
    np.testing.assert_allclose(matrix_of(data, "min")["w"], wide.min(axis=1))


def test_only_the_newest_steps_are_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", *({"w": np.full(2, i)} for i in range(4)))
    data = page_of(run, tmp_path / "r.html", steps=2)
    assert data["measured"] == [2, 3]
    assert [step["state"] for step in data["history"]] == ["not read", "not read", "read", "read"]
    without = page_of(run, tmp_path / "r.html", statistics=False)
    assert without["shown"] == 3
    assert without["leaves"]["w"]["l2"] is None


def test_a_leaf_that_changes_its_shape_or_comes_and_goes_has_no_change(tmp_path: Path) -> None:
    trees = ({"a": np.ones(3), "b": np.ones(2)}, {"a": np.ones(4)}, {"a": np.ones(4), "c": 1})
    data = page_of(make_run(tmp_path / "run", *trees), tmp_path / "r.html")
    changes = matrix_of(data, "change")
    assert np.isnan(changes["a"][:2]).all()
    assert changes["a"][2] == 0
    assert list(data["leaves"]) == ["a", "c", "b"]
    assert data["absent"] == [[0, 1], [1, 1], [1, 2], [2, 2]]


def test_a_histogram_counts_every_finite_value(tmp_path: Path) -> None:
    values = np.array([0.0, 0.0, 1.0, 63.5, np.nan, -np.inf])
    ocp.save(tmp_path / "c", {"same": np.full(7, 2.5), "text": "no numbers", "v": values})
    data = page_of(tmp_path / "c", tmp_path / "r.html")
    edges = dict(zip(data["leaves"], data["blobs"]["edges-0"].reshape(-1, 3).tolist(), strict=True))
    counts = dict(zip(data["leaves"], data["blobs"]["counts-0"].reshape(-1, 64), strict=True))
    assert edges["v"] == [0.0, 1.0, 2.0]
    assert [int(counts["v"][i]) for i in (0, 1, 62, 63)] == [2, 1, 0, 1]
    assert edges["same"] == [2.5, 0.0, 0.0]
    assert counts["same"][0] == 7
    assert not counts["text"].any()
    assert data["not_finite"] == [[0, list(data["leaves"]).index("v"), 1, 1]]
    assert data["state"]["leaves_not_finite"] == 1


def test_a_damaged_chunk_is_on_the_page_beside_all_other_leaves(cli: Run, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((3, 20_000))
    run = make_run(tmp_path / "run", *({"a": np.ones(9), "w": value} for value in values))
    damage_chunk(run / "3")
    printed = cli("report", run, "-o", "report.html", status=1)
    assert "damaged: 3\n" in printed.out
    data = data_of((tmp_path / "report.html").read_text())
    assert [step["state"] for step in data["history"]] == ["read", "read", "damaged"]
    ((row, leaf, message),) = data["damage"]
    assert (row, list(data["leaves"])[leaf]) == (2, "w")
    assert message.startswith("w: chunk")
    assert data["leaves"]["w"]["l2"] is None
    assert data["leaves"]["a"]["l2"] == 3.0
    norms, changes = (matrix_of(data, name)["w"] for name in ("l2", "change"))
    np.testing.assert_allclose(norms, [*np.linalg.norm(values[:2], axis=1), np.nan])
    assert np.isfinite(changes).tolist() == [False, True, False]
    assert cli("report", run, "-o", "r.html", "--json", status=1).json["damaged"] == ["3"]


@pytest.mark.parametrize("statistics", [True, False])
def test_a_newest_step_that_cannot_be_opened_leaves_the_others(
    own_run: Path, tmp_path: Path, statistics: bool
) -> None:
    for file in (own_run / "30").rglob("_METADATA"):
        file.write_bytes(b"{")
    data = page_of(own_run, tmp_path / "r.html", statistics=statistics, steps=1)
    assert data["history"][2]["state"] == "damaged"
    assert "_METADATA" in data["history"][2]["problems"][0]
    assert data["shown"] == 1
    assert "params/dense/kernel" in data["leaves"]


def test_verified_steps_say_so_and_damage_besides_values_is_found(
    own_run: Path, tmp_path: Path
) -> None:
    (marker,) = (own_run / "20").glob("_CHECKPOINT_METADATA")
    marker.write_text(marker.read_text() + " ")
    data = page_of(own_run, tmp_path / "r.html", verify=True)
    assert [step["state"] for step in data["history"]] == ["verified", "damaged", "verified"]
    assert str(marker) in data["history"][1]["problems"][0]


def test_what_earlier_commands_recorded_is_shown_of_steps_not_read_now(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_run(tmp_path / "run", *({"w": np.ones(3)} for _ in range(3)))
    monkeypatch.setenv("ORBIT_CKPT_CACHE", str(tmp_path / "records"))
    steps = sorted(path for path in root.iterdir() if path.is_dir())
    cli("verify", steps[0], env={"ORBIT_CKPT_CACHE": str(tmp_path / "records")})
    history = page_of(root, tmp_path / "page.html", statistics=False)["history"]
    assert [step["state"] for step in history] == ["verified", "not read", "not read"]


def test_rules_explain_which_steps_are_kept(cli: Run, run_directory: Path, tmp_path: Path) -> None:
    options = ("--keep-best", 1, "--metric", "loss", "--lowest", "--keep-last", 1)
    cli("report", run_directory, "-o", "report.html", "--no-stats", *options)
    data = data_of((tmp_path / "report.html").read_text())
    kept = [step["kept_by"] for step in data["history"]]
    assert kept == [["pinned"], ["best 1 by loss"], ["last 1", "newest"]]
    cli("report", run_directory, "-o", "report.html", "--no-stats")
    assert data_of((tmp_path / "report.html").read_text())["history"][0]["kept_by"] is None


def distinct_bytes(directories: Iterable[Path]) -> int:
    """Return the size of the files of directories, each counted once."""
    files = [file.stat() for path in directories for file in path.rglob("*") if file.is_file()]
    return sum({one.st_ino: one.st_size for one in files}.values())


def test_bytes_that_steps_share_are_counted_once_a_link(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"w": np.ones(100)}, {"w": np.ones(100)})
    file = max((run / "1").rglob("d/*"), key=lambda one: one.stat().st_size)
    os.link(file, run / "2" / "linked")
    os.link(max((run / "2").rglob("*.json")), tmp_path / "elsewhere")
    steps = page_of(run, tmp_path / "r.html", statistics=False)["history"]
    assert [step["shared"] for step in steps] == [file.stat().st_size] * 2
    assert steps[1]["new"] == steps[1]["bytes"] - file.stat().st_size


def test_incremental_steps_say_what_is_new_and_what_all_take(tmp_path: Path) -> None:
    frozen = np.random.default_rng(0).standard_normal(50_000)
    options = ocp.CheckpointManagerOptions(incremental=True)
    with ocp.CheckpointManager(tmp_path / "run", options=options) as run:
        for step in range(3):
            run.save(step, {"frozen": frozen, "trained": np.full(1000, float(step))})
    data = page_of(tmp_path / "run", tmp_path / "r.html", statistics=False)
    first, *others = data["history"]
    assert first["new"] == first["bytes"] > frozen.nbytes / 2
    for step in others:
        assert step["new"] + step["shared"] == step["bytes"]
        assert step["new"] < frozen.nbytes / 10
    assert sum(step["new"] for step in data["history"]) == data["disk_bytes"]
    assert data["disk_bytes"] == distinct_bytes(tmp_path / "run" / str(i) for i in range(3))


def test_the_page_has_the_times_of_the_saves_that_were_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"w": np.ones(3)}, {"w": np.ones(3)})
    saves = [step["save"] for step in page_of(run, tmp_path / "r.html", steps=2)["history"]]
    for save in saves:
        assert 0 < save["blocked"] <= save["total"]
        assert save["waited"] >= 0
    assert page_of(run, tmp_path / "r.html", steps=1)["history"][0]["save"] is None
    ocp.save(tmp_path / "alone", {"w": np.ones(3)})
    alone = page_of(tmp_path / "alone", tmp_path / "r.html")["state"]["save"]
    assert alone["waited"] is None
    assert 0 < alone["blocked"] <= alone["total"]


def test_a_checkpoint_that_records_no_times_is_a_page(
    golden_checkpoint: Path, tmp_path: Path
) -> None:
    assert page_of(golden_checkpoint, tmp_path / "r.html")["state"]["save"] is None


def test_a_sharding_says_which_devices_hold_each_part(tmp_path: Path) -> None:
    tree = {
        "both": put(np.zeros((8, 6)), "x", "y", x=4, y=2),
        "rows": put(np.zeros((6, 8)), None, "x", x=4, y=2),
        "joint": put(np.zeros(16), ("y", "x"), x=4, y=2),
        "whole": put(np.zeros(3), x=4, y=2),
    }
    ocp.save(tmp_path / "c", tree)
    data = page_of(tmp_path / "c", tmp_path / "r.html", statistics=False)
    maps = {name: data["shardings"][leaf["sharding"]] for name, leaf in data["leaves"].items()}
    assert maps["both"]["grid"] == [[[2 * i + j] for j in range(2)] for i in range(4)]
    assert (maps["rows"]["dims"], maps["rows"]["grid"][1]) == ([1], [[2, 3]])
    assert maps["joint"]["grid"] == [[[i]] for i in (0, 2, 4, 6, 1, 3, 5, 7)]
    assert maps["whole"]["grid"] == [[list(range(8))]]
    assert maps["both"]["mesh"] == {"x": 4, "y": 2}
