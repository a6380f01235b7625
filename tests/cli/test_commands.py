"""What every command prints and how it exits."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import orbit_ckpt as ocp
import orbit_ckpt.cli
from orbit_ckpt._src.storage.layout import MANIFEST
from orbit_ckpt._src.storage.manifest import Manifest
from tests.cli.conftest import COMMAND, ENVIRONMENT, Run, make_state
from tests.support import damage_chunk

pytestmark = pytest.mark.slow


def damage(directory: Path, key: str = "opt_state.0/c/0/0") -> None:
    damage_chunk(directory / "default", key)


def test_ls_of_a_run_lists_its_steps(cli: Run, run_directory: Path) -> None:
    found = cli("ls", run_directory, "--json").json
    assert (found["schema"], found["command"], found["kind"]) == (1, "ls", "run")
    steps = found["steps"]
    assert [step["step"] for step in steps] == [10, 20, 30]
    assert [step["pinned"] for step in steps] == [True, False, False]
    assert [step["metrics"] for step in steps] == [{"loss": 0.5}, {"loss": 0.25}, {"loss": 0.4}]
    sizes = [
        sum(f.stat().st_size for f in (run_directory / str(n)).rglob("*") if f.is_file())
        for n in (10, 20, 30)
    ]
    assert [step["bytes"] for step in steps] == sizes
    assert {step["kept_by"] for step in steps} == {None}
    text = cli("ls", run_directory).out
    assert "loss" in text.splitlines()[0]
    assert "0.25" in text.splitlines()[2]


def test_ls_says_which_rule_would_keep_each_step(cli: Run, run_directory: Path) -> None:
    rules = ("--keep-last", 1, "--keep-best", 1, "--metric", "loss", "--lowest")
    steps = cli("ls", run_directory, *rules, "--json").json["steps"]
    kept = {step["step"]: step["kept_by"] for step in steps}
    assert kept == {10: ["pinned"], 20: ["best 1 by loss"], 30: ["last 1", "newest"]}


def test_ls_tells_of_unfinished_saves_and_reads_any_names(cli: Run, tmp_path: Path) -> None:
    for name in ("checkpoint_7", "checkpoint_12"):
        ocp.save(tmp_path / "run" / name, {"w": np.ones(2)})
    (tmp_path / "run/checkpoint_13.orbax-checkpoint-tmp-1").mkdir()
    found = cli("ls", "run", "--json").json
    assert [step["step"] for step in found["steps"]] == [7, 12]
    assert found["unfinished"] == ["checkpoint_13.orbax-checkpoint-tmp-1"]
    assert "unfinished: checkpoint_13" in cli("ls", "run").out


def test_ls_of_a_checkpoint_lists_its_items(cli: Run, run_directory: Path, tmp_path: Path) -> None:
    found = cli("ls", run_directory / "10", "--json").json
    assert found["kind"] == "checkpoint"
    assert [item["item"] for item in found["items"]] == ["default", "metrics"]
    assert found["items"][0]["leaves"] == 13
    ocp.save(tmp_path / "single", {"w": np.ones(2)}, custom_metadata={"note": "mine"})
    single = cli("ls", "single", "--json").json
    assert [(item["item"], item["leaves"]) for item in single["items"]] == [("", 1)]
    assert single["custom_metadata"] == {"note": "mine"}


def test_tree_describes_every_leaf(cli: Run, run_directory: Path) -> None:
    found = cli("tree", run_directory / "10", "--json").json
    leaves = {leaf["name"]: leaf for leaf in found["leaves"]}
    assert len(leaves) == 13
    kernel = leaves["params/dense/kernel"]
    assert (kernel["kind"], kernel["dtype"], kernel["shape"]) == ("array", "float32", [16, 8])
    assert kernel["nbytes"] == 512
    assert "x=8" in kernel["sharding"]
    assert leaves["name"]["kind"] == "string"
    assert leaves["opt_state/1"]["kind"] == "None"
    assert leaves["step"]["kind"] == "scalar"
    assert found["bytes"] == sum(leaf["nbytes"] for leaf in leaves.values())
    lines = cli("tree", run_directory / "10", "--flat").out.splitlines()
    assert len(lines) == 15
    assert lines[-1].startswith("13 leaves, ")


def test_tree_filters_sorts_and_sums_up(cli: Run, run_directory: Path) -> None:
    step = run_directory / "10"
    found = cli("tree", step, "--filter", "params/*/kernel", "--sort", "size", "--json").json
    names = [leaf["name"] for leaf in found["leaves"]]
    assert names[0] == "params/dense/kernel"
    assert set(names[1:]) == {"params/layer_0/kernel", "params/layer_1/kernel"}
    groups = cli("tree", step, "--depth", 1, "--sort", "size", "--json").json["groups"]
    assert [group["name"] for group in groups[:2]] == ["opt_state", "params"]
    assert groups[1]["nbytes"] == 512 + 16 + 2 * 64
    error = cli("tree", step, "--filter", "nothing/**", status=2).err
    assert "No leaf matches 'nothing/**'" in error


def test_show_prints_statistics_and_corners(cli: Run, run_directory: Path) -> None:
    found = cli("show", run_directory / "20", "params/dense/kernel", "--json").json
    values = np.asarray(make_state(20)["params"]["dense"]["kernel"], np.float64)
    statistics = found["statistics"]
    assert statistics["size"] == 128
    assert (statistics["min"], statistics["max"]) == (values.min(), values.max())
    assert math.isclose(statistics["l2"], np.linalg.norm(values))
    assert found["indices"] == [[0, 1, 2, 3, 13, 14, 15], [0, 1, 2, 3, 5, 6, 7]]
    corners = values[np.ix_(*found["indices"])]
    np.testing.assert_allclose(found["corners"], corners, rtol=1e-6)
    text = cli("show", run_directory / "20", "params/dense/kernel").out
    assert " ... " in text
    assert "float32[16, 8]" in text


@pytest.mark.parametrize("leaf", ["params/dense/kernel", "params.dense.kernel"])
@pytest.mark.parametrize("command", ["show", "stats", "tree", "convert"])
def test_commands_take_names_with_slashes_and_those_that_older_messages_have(
    cli: Run, run_directory: Path, command: str, leaf: str
) -> None:
    step = run_directory / "20"
    match command:
        case "show":
            assert cli("show", step, leaf, "--json").json["leaf"]["name"] == "params/dense/kernel"
        case "convert":
            cli("convert", step, "out", "--to", "orbit", "--only", leaf)
            assert "params/dense/kernel" in cli("tree", "out").out
        case _:
            (found,) = cli(command, step, "--filter", leaf, "--json").json["leaves"]
            assert found["name"] == "params/dense/kernel"


@pytest.mark.parametrize("leaf", sorted(["key", "name", "step", "blob", "when", "complex", "odd"]))
def test_show_knows_every_kind_of_leaf(cli: Run, run_directory: Path, leaf: str) -> None:
    text = cli("show", run_directory / "20", leaf).out
    shown = {"name": "</script>", "step": "20", "when": "2020-01-01", "odd": "nan", "complex": "3."}
    assert shown.get(leaf, leaf) in text


def test_stats_are_those_of_numpy(cli: Run, run_directory: Path) -> None:
    found = cli("stats", run_directory / "20", "--memory", 1, "--json").json
    leaves = {leaf["name"]: leaf for leaf in found["leaves"]}
    odd = leaves["odd"]
    assert (odd["nans"], odd["infs"], odd["min"], odd["max"]) == (1, 2, 1.0, 3.0)
    assert (odd["mean"], odd["l2"]) == (2.0, math.sqrt(10))
    assert leaves["opt_state/0"]["mean"] == 20
    assert leaves["complex"]["l2"] == 5
    assert leaves["name"]["min"] is None
    assert leaves["key"]["size"] is None
    assert found["not_finite"] == ["odd"]


def test_stats_fail_on_nan_if_asked_to(cli: Run, run_directory: Path) -> None:
    step = run_directory / "20"
    assert "not finite: odd" in cli("stats", step, "--fail-on-nan", status=1).out
    cli("stats", step, "--fail-on-nan", "--filter", "params/**")
    cli("stats", step)


def test_leaves_whose_keys_have_slashes_are_told_apart(cli: Run, tmp_path: Path) -> None:
    tree = {"a/b": {"c": np.array([1.0, np.nan])}, "a": {"b/c": np.array([2.0, 2.0, 2.0])}}
    ocp.save(tmp_path / "checkpoint", tree)
    stats = cli("stats", "checkpoint", "--fail-on-nan", "--json", status=1).json["leaves"]
    assert [(leaf["name"], leaf["size"], leaf["min"], leaf["nans"]) for leaf in stats] == [
        ("a/b/c", 3, 2.0, 0),
        ("a/b/c", 2, 1.0, 1),
    ]
    error = cli("show", "checkpoint", "a/b/c", status=2).err
    assert "'a/b/c' is the name of 2 leaves, with the keys ['a', 'b/c'] and ['a/b', 'c']" in error
    groups = cli("tree", "checkpoint", "--depth", 1, "--json").json["groups"]
    assert [(group["name"], group["nbytes"]) for group in groups] == [("a", 24), ("a/b", 16)]


def test_names_of_leaves_do_not_steer_the_terminal(cli: Run, tmp_path: Path) -> None:
    name = "a\x1b[2Jb\nc\u202ed"
    ocp.save(tmp_path / "checkpoint", {name: np.ones(2), "größe": 1})
    for command in ("tree", "stats"):
        out = cli(command, "checkpoint").out
        assert "a\\x1b[2Jb\\nc\\u202ed  " in out
        assert "größe" in out
    assert "\x1b" not in cli("plan", "checkpoint").out
    assert "\x1b" not in cli("show", "checkpoint", "x", status=2).err
    leaves = cli("tree", "checkpoint", "--json").json["leaves"]
    assert name in [leaf["name"] for leaf in leaves]


def test_diff_exits_with_1_if_checkpoints_differ(cli: Run, run_directory: Path) -> None:
    a, b = run_directory / "10", run_directory / "20"
    assert cli("diff", a, b, "--json").json["same"] is True  # names, shapes and dtypes
    found = cli("diff", a, b, "--values", "--json", status=1).json
    assert {change["path"] for change in found["changed"]} == {
        *("params/dense/kernel", "opt_state/0", "step"),
    }
    assert "changed from a to b: 3" in cli("diff", a, b, "--values", status=1).out
    cli("diff", a, a, "--values")


def test_verify_names_damage_and_exits_with_1(cli: Run, own_run: Path) -> None:
    report = cli("verify", own_run, "--json").json
    assert (report["intact"], len(report["checkpoints"]), report["damage"]) == (True, 3, [])
    damage(own_run / "20")
    report = cli("verify", own_run, "--json", status=1).json
    (one,) = report["damage"]
    assert (one["leaf"], one["chunk"]) == ("opt_state/0", "opt_state.0/c/0/0")
    assert "is damaged" in cli("stats", own_run / "20", "--filter", one["leaf"], status=1).out
    assert Path(one["checkpoint"]) == own_run / "20"
    text = cli("verify", own_run / "20", status=1).out
    assert "opt_state.0/c/0/0" in text
    cli("verify", own_run / "10")


def test_a_later_version_cannot_be_verified_which_is_no_finding(
    cli: Run, own_run: Path, tmp_path: Path
) -> None:
    (own_run / "20" / MANIFEST).write_bytes(Manifest(version=99).to_bytes())
    told = cli("verify", own_run, "--json", status=2)
    assert "1 of 3 checkpoints cannot be verified: " in told.err
    assert "Install a newer one." in told.err
    found = told.json
    assert (found["intact"], found["damage"], found["leaves"]) == (False, [], 24)
    (one,) = found["unverifiable"]
    assert Path(one["checkpoint"]) == own_run / "20"
    assert "format version 99" in one["what"]
    assert "cannot be verified: 1\n" in cli("verify", own_run / "20", status=2).out
    error = cli("cp", own_run / "20", "copy", status=2).err
    assert f"{own_run / '20'} cannot be verified: {own_run / '20' / MANIFEST}: " in error
    assert not (tmp_path / "copy").exists()
    cli("cp", own_run / "20", "copy", "--no-verify")
    damage(own_run / "30")
    assert len(cli("verify", own_run, "--json", status=1).json["unverifiable"]) == 1


def test_plan_says_what_rules_do(cli: Run, run_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(
        """
        [[rules]]
        rule = "stack"
        pattern = { regex = "params/layer_([0-9]+)/(.*)" }
        to = 'params/layers/\\2'

        [[rules]]
        rule = "drop"
        pattern = "opt_state/**"
        """
    )
    found = cli("plan", run_directory / "10", "--rules", "rules.toml", "--json").json
    leaves = {leaf["name"]: leaf for leaf in found["leaves"]}
    assert found["possible"] is True
    assert leaves["params/layers/kernel"]["actions"] == ["stack"]
    assert leaves["params/layers/kernel"]["shape"] == [2, 4, 4]
    assert found["ignored"] == ["opt_state/0"]
    assert "stack" in cli("plan", run_directory / "10", "--rules", "rules.toml").out
    title = cli("plan", run_directory / "10").out.splitlines()[0]
    assert title.split()[:2] == ["target", "action"]  # no source has another name
    (tmp_path / "rules.json").write_text('{"rules": [{"rule": "drop", "pattern": "params/**"}]}')
    found = cli("plan", run_directory / "10", "--rules", "rules.json", "--json").json
    assert not any(leaf["name"].startswith("params") for leaf in found["leaves"])


def test_plan_exits_with_1_if_a_restore_would_fail(
    cli: Run, run_directory: Path, tmp_path: Path
) -> None:
    step = run_directory / "10"
    assert cli("plan", step, "--like", run_directory / "20", "--json").json["possible"] is True
    ocp.save(tmp_path / "other", {"params": {"dense": {"kernel": np.ones((16, 9), np.float32)}}})
    like = ("--like", "other", "--unexpected", "ignore")
    found = cli("plan", step, *like, "--json", status=1).json
    assert found["possible"] is False
    assert "shape (16, 9) wanted, (16, 8) stored" in found["error"]
    ocp.save(tmp_path / "part", {"step": 1})
    cli("plan", step, "--like", "part", status=1)
    cli("plan", step, "--like", "part", "--unexpected", "ignore")
    cli("plan", step, "--only", "params/**")


def test_plan_says_what_is_wrong_with_a_rule_file(
    cli: Run, run_directory: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[[rules]]\nrule = "rename"\npatern = "a"\nto = "b"\n')
    error = cli("plan", run_directory / "10", "--rules", file, status=2).err
    assert "rules.toml: rule 1 (rename): there is no field 'patern'" in error
    assert "did you mean 'pattern'?" in error
    file.write_bytes(b"\xff\xfe")
    error = cli("plan", run_directory / "10", "--rules", file, status=2).err
    assert "rules.toml: not a text in UTF-8" in error
    file.write_text("[[rules]\n")
    assert "not TOML" in cli("plan", run_directory / "10", "--rules", file, status=2).err
    assert "rules.yaml" in cli("plan", run_directory / "10", "--rules", "rules.yaml", status=2).err


def test_cp_makes_a_checkpoint_that_loads_alike(cli: Run, own_run: Path, tmp_path: Path) -> None:
    found = cli("cp", own_run / "10", "deep/copy", "--json").json
    assert found["verified"] is True
    assert ocp.diff(own_run / "10", tmp_path / "deep/copy", values=True).is_same
    assert ocp.verify(tmp_path / "deep/copy").is_intact
    assert (tmp_path / "deep/copy/PINNED").exists()
    error = cli("cp", own_run / "20", "deep/copy", status=2).err
    assert "exists already. Pass --overwrite" in error
    cli("cp", own_run / "20", "deep/copy", "--overwrite")
    loaded = ocp.load(tmp_path / "deep/copy", only="step")
    assert loaded["step"] == 20
    assert os.listdir(tmp_path / "deep") == ["copy"]


def test_cp_leaves_nothing_of_a_damaged_checkpoint(cli: Run, own_run: Path, tmp_path: Path) -> None:
    damage(own_run / "20")
    error = cli("cp", own_run / "20", "copies/a", status=2).err
    assert f"{own_run / '20'} is damaged" in error
    assert os.listdir(tmp_path / "copies") == []
    cli("cp", own_run / "20", "copies/a", "--no-verify")
    assert os.listdir(tmp_path / "copies") == ["a"]
    assert "is a run" in cli("cp", own_run, "copies/b", status=2).err


def test_rm_deletes_one_checkpoint(cli: Run, own_run: Path) -> None:
    assert "--yes" in cli("rm", own_run / "20", status=2).err
    assert (own_run / "20").exists()
    assert cli("rm", own_run / "20", "--yes", "--json").json["bytes"] > 0
    assert sorted(os.listdir(own_run)) == ["10", "30"]
    assert "pinned" in cli("rm", own_run / "10", "--yes", status=2).err
    cli("rm", own_run / "10", "--yes", "--force")
    assert os.listdir(own_run) == ["30"]


def test_rm_deletes_nothing_else(cli: Run, own_run: Path, tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers/thesis.txt").write_text("precious")
    assert "No checkpoint" in cli("rm", "papers", "--yes", status=2).err
    assert (tmp_path / "papers/thesis.txt").exists()
    assert "it is a text file" in cli("rm", "papers/thesis.txt", "--yes", status=2).err
    assert "is a run" in cli("rm", own_run, "--yes", status=2).err
    assert len(os.listdir(own_run)) == 3
    error = cli("rm", own_run / "20" / "default", "--yes", status=2).err
    assert f"is a part of the checkpoint {own_run / '20'}" in error
    assert ocp.verify(own_run).is_intact
    shutil.copytree(own_run / "20" / "default", tmp_path / "papers" / "item")
    error = cli("rm", "papers", "--yes", status=2).err
    assert "perhaps other things too: it is a directory with item, thesis.txt" in error
    cli("rm", "papers/item", "--yes")
    assert os.listdir(tmp_path / "papers") == ["thesis.txt"]


def test_prune_deletes_what_no_rule_keeps(cli: Run, own_run: Path) -> None:
    dry = cli("prune", own_run, "--keep-last", 1, "--dry-run", "--json").json
    assert {step["step"]: step["deleted"] for step in dry["steps"]} == {
        10: False,
        20: True,
        30: False,
    }
    assert len(os.listdir(own_run)) == 3
    assert "--yes" in cli("prune", own_run, "--keep-last", 1, status=2).err
    done = cli("prune", own_run, "--keep-last", 1, "--yes").out
    assert "1 of 3 steps deleted" in done
    assert sorted(os.listdir(own_run)) == ["10", "30"]
    assert "No rule" in cli("prune", own_run, status=2).err
    error = cli("prune", own_run, "--keep-best", 1, "--metric", "los", status=2).err
    assert "No step has a metric 'los'; there are loss" in error


def test_prune_does_not_take_one_run_for_another(cli: Run, own_run: Path) -> None:
    (own_run / "20").rename(own_run / "best_99")
    error = cli("prune", own_run, "--keep-last", 1, "--yes", status=2).err
    assert "may hold several runs" in error
    assert "10, 30, best_99" in error
    assert len(os.listdir(own_run)) == 3
    (own_run / "best_99").rename(own_run / "0020")
    cli("prune", own_run, "--keep-last", 1, "--yes")
    assert sorted(os.listdir(own_run)) == ["10", "30"]


def test_plugins_lists_what_is_installed_and_what_fails(
    cli: Run, fresh: Run, tmp_path: Path
) -> None:
    assert "no plug-ins" in cli("plugins").out
    installed = tmp_path / "quant-1.2.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: quant\nVersion: 1.2\n")
    (installed / "entry_points.txt").write_text(
        "[orbit_ckpt.type_handlers]\nrefused = json:dumps\n"
        "untyped = orbit_ckpt.type_handlers:StringHandler\n"
        "[orbit_ckpt.items]\nbroken = no_such_module:Item\nfine = orbit_ckpt:JsonHandler\n"
        "unfit = json:JSONEncoder\n"
        "[orbit_ckpt.formats]\nother = json:JSONEncoder\n"
    )
    paths = f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    env = {**ENVIRONMENT, "PYTHONPATH": paths}
    found = fresh("plugins", "--json", env=env, status=1).json["plugins"]
    by_name = {plugin["name"]: plugin for plugin in found}
    assert by_name["fine"]["error"] is None
    assert by_name["fine"]["package"] == "quant 1.2"
    assert "no_such_module" in by_name["broken"]["error"]
    assert "does not have the methods of a TypeHandler" in by_name["refused"]["error"]
    assert "does not say in `types` which classes" in by_name["untyped"]["error"]
    assert "is no class with the methods of an item handler" in by_name["unfit"]["error"]
    assert "does not have the methods of a Format" in by_name["other"]["error"]


@pytest.mark.parametrize(
    ("command", "path"),
    [*((name, "nothing") for name in ("ls", "tree", "stats", "verify", "plan")), ("ls", "file")],
)
def test_what_cannot_be_read_is_one_line_of_error(
    cli: Run, tmp_path: Path, command: str, path: str
) -> None:
    (tmp_path / "file").write_text("x")
    result = cli(command, path, status=2)
    assert result.out == ""
    message, *notes = result.err.splitlines()
    assert message.startswith("error: No checkpoint at ")
    assert [note.startswith("  See https://") for note in notes] == [True]


@pytest.mark.parametrize(
    "arguments",
    [
        *(("tree", "RUN"), ("stats", "RUN"), ("show", "RUN", "odd"), ("plan", "RUN")),
        *(("convert", "RUN", "out", "--to", "orbit"), ("diff", "RUN", "STEP")),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_for_one_checkpoint_reads_the_newest_step_of_a_run(
    cli: Run, run_directory: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    newest = run_directory / "30"
    outputs: list[str] = []
    for number, run in enumerate((run_directory, newest)):
        places = {"RUN": run, "STEP": newest, "out": tmp_path / f"out{number}"}
        out = cli(*[places.get(a, a) for a in arguments]).out
        outputs.append(out.replace(f"{places['out']}", "out").replace(f"{newest}", "at"))
    assert outputs[0].replace(f"{run_directory}", "at") == outputs[1]


@pytest.mark.parametrize("command", ["tree", "stats", "plan"])
def test_a_command_for_one_checkpoint_says_which_of_several_to_give(
    cli: Run, tmp_path: Path, command: str
) -> None:
    for name in ("alice", "bob"):
        ocp.save(tmp_path / name, {"w": 1})
    assert f"give one of them, for example {tmp_path}/bob" in cli(command, tmp_path, status=2).err


def test_paths_need_not_be_text(cli: Run, tmp_path: Path) -> None:
    directory = os.fsdecode(os.fsencode(tmp_path) + b"/na\xefve")
    ocp.save(tmp_path / "checkpoint", {"w": np.ones(2)})
    (tmp_path / "checkpoint").rename(directory)
    assert cli("ls", directory, "--json").json["path"] == directory
    assert "na\\udcefve" in cli("verify", directory).out
    assert "na\\udcefve" in cli("ls", f"{directory}/nothing", status=2).err


def test_wrong_usage_exits_with_2(cli: Run, run_directory: Path) -> None:
    cli("tree", status=2)
    cli("tree", run_directory / "10", "--sort", "colour", status=2)
    cli("no-such-command", status=2)
    cli("plan", run_directory / "10", "--missing", "target", status=2)
    assert "Usage" in cli("--help").out
    assert cli("--version").out == f"orbit-ckpt {ocp.__version__}\n"


def test_other_writers_checkpoints_are_listed_and_verified(
    cli: Run, golden_checkpoint: Path
) -> None:
    assert cli("tree", golden_checkpoint, "--json").json["leaves"]
    report = cli("verify", golden_checkpoint, "--json").json
    assert report["intact"] is True
    assert any("decoded only" in one["what"] for one in report["unchecked"])
    cli("stats", golden_checkpoint)
    cli("plan", golden_checkpoint)


def test_a_reader_that_stops_early_is_no_error(run_directory: Path) -> None:
    command = f"{sys.executable} -m orbit_ckpt.cli tree {run_directory / '10'} | head -n 1"
    done = subprocess.run(  # noqa: S602 - the pipe is what is tested
        command,
        shell=True,
        check=True,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("tree")
    assert done.stderr == ""


def test_without_its_packages_it_says_what_to_install(fresh: Run, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('No module', name='click')")
    env = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}
    assert "orbit-ckpt[cli]" in fresh("ls", env=env, status=2).err


def test_a_mistake_of_a_plug_in_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "class Bad:\n    name, extra = 'bad', None\n"
        "    def sniff(self, path): raise RuntimeError('sniffed wrongly')\n"
        "    def open(self, path): ...\n"
    )
    installed = tmp_path / "bad-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[orbit_ckpt.formats]\nbad = bad:Bad\n")
    env = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}
    command = [*COMMAND, "verify", str(tmp_path)]
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "sniffed wrongly" in done.stderr


def test_a_process_of_its_own_gives_exit_code_output_and_errors(
    fresh: Run, cli: Run, run_directory: Path
) -> None:
    assert fresh("ls", run_directory).out == cli("ls", run_directory).out
    assert fresh("ls", "nothing", status=2).err == cli("ls", "nothing", status=2).err
    fresh("diff", run_directory / "10", run_directory / "20", "--values", status=1)


def test_the_installed_script_is_this_command() -> None:
    root = Path(__file__).parent.parent.parent
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    assert EntryPoint("", scripts["orbit-ckpt"], "").load() is orbit_ckpt.cli.main


def test_json_is_strict(cli: Run, run_directory: Path) -> None:
    def refuse(name: str) -> Any:
        raise AssertionError(name)

    out = cli("show", run_directory / "20", "odd", "--json").out
    found = json.loads(out, parse_constant=refuse)
    assert found["corners"] == [1.0, "NaN", "Infinity", "-Infinity", 3.0]


def test_this_process_has_devices_though_the_commands_have_none() -> None:
    assert ENVIRONMENT["JAX_PLATFORMS"] != os.environ["JAX_PLATFORMS"]
    assert jax.devices()
