"""Commands on checkpoints of other programs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import orbit_ckpt as ocp
from tests.cli.conftest import Run

SAMPLES = Path(__file__).parent.parent / "formats" / "samples"
LEAVES = {
    "safetensors/model.safetensors": ("safetensors", 2, "a.w"),
    "t5x/v3_save_f32/checkpoint_42": ("T5X", 5, "target/kernel"),
    "t5x/tf_t5_ckpt": ("TensorFlow", 29, "target/encoder/encoder_norm/scale"),
    "eformer/run-10_unstructured": ("eFormer", 7, "dense/kernel"),
    "eformer/run-20_structured/model": ("eFormer", 7, "dense/kernel"),
    "levanter/step-7": ("Levanter", 10, "model/layers/0/weight"),
    "flax_msgpack/chunked_64B.msgpack": ("flax msgpack", 4, "big"),
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sample", LEAVES)
def test_every_command_that_looks_knows_every_format(sample: str, cli: Run, tmp_path: Path) -> None:
    path, (name, count, leaf) = SAMPLES / sample, LEAVES[sample]
    (item,) = cli("ls", path, "--json").json["items"]
    assert (item["leaves"], item["handler"]) == (count, name)
    size = path.stat().st_size if path.is_file() else None
    assert size is None or item["bytes"] == size
    assert name in cli("ls", path).out
    assert leaf in [found["name"] for found in cli("tree", path, "--json").json["leaves"]]
    assert cli("show", path, leaf, "--json").json["leaf"]["kind"] == "array"
    assert len(cli("stats", path, "--json").json["leaves"]) >= count
    assert cli("plan", path, "--json").json["possible"] is True
    assert cli("diff", path, path, "--values", "--json").json["same"] is True
    cli("report", path, "-o", "page.html")
    assert leaf in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("sample", LEAVES)
def test_verify_decodes_every_leaf_and_says_what_has_no_checksums(sample: str, cli: Run) -> None:
    path, (name, count, _) = SAMPLES / sample, LEAVES[sample]
    found = cli("verify", path, "--json").json
    assert (found["intact"], found["leaves"], found["damage"]) == (True, count, [])
    assert found["bytes_checked"] > 0
    if name == "TensorFlow" or sample.startswith("safetensors"):  # which eFormer wrote, with sums
        assert found["unchecked"] == []
    else:
        what = f"leaves of {name}, which has no checksums: decoded only"
        listed = [(one["what"], one["count"]) for one in found["unchecked"]]
        # beside the leaves, documents that nothing binds to the arrays
        assert (what, count) in listed
        assert all(one.startswith(f"documents of {name} ") for one, _ in listed if one != what)


@pytest.mark.parametrize("sample", ["v0_refused", "v2_bf16_as_uint16"])
def test_versions_that_are_refused_are_not_called_damaged(sample: str, cli: Run) -> None:
    told = cli("verify", SAMPLES / "t5x" / sample / "checkpoint_42", "--json", status=2)
    assert told.json["damage"] == []
    (one,) = told.json["unverifiable"]
    assert "1 of 1 checkpoints cannot be verified: " + one["what"] in told.err


@pytest.mark.parametrize(
    ("sample", "file"),
    [
        ("t5x/v3_save_f32", "checkpoint_42/target.kernel/0.0"),
        ("t5x/v3_save_f32", "checkpoint_42/checkpoint"),
        ("t5x/tf_t5_ckpt", "*.data-00000-of-00001"),
        ("eformer/run-10_unstructured", "dense/kernel/0.0"),
        ("levanter/step-7", "model/layers/0/weight/0.0"),
        ("flax_msgpack", "all_types.msgpack"),
        ("safetensors", "model.safetensors"),
    ],
)
def test_verify_finds_files_that_are_cut_short(
    sample: str, file: str, cli: Run, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(SAMPLES / sample, tmp_path / "run"))
    (cut,) = root.glob(file)
    cut.write_bytes(cut.read_bytes()[:-7])
    path = cut if cut.parent == root and sample != "t5x/tf_t5_ckpt" else root
    (damage, *_) = cli("verify", path, "--json", status=1).json["damage"]
    assert cut.name in (damage["file"] or damage["what"])
    assert not ocp.verify(path)


@pytest.mark.parametrize("sample", LEAVES)
def test_cp_copies_directories_of_every_format(sample: str, cli: Run, tmp_path: Path) -> None:
    path = SAMPLES / sample
    if path.is_file():
        error = cli("cp", path, "copy", status=2).err
        assert f"{path} is one file, a checkpoint of {LEAVES[sample][0]}" in error
        path = Path(shutil.copytree(path.parent, tmp_path / "source"))
        if "safetensors" not in sample:
            return
    if path.name == "model":
        assert "is a part of a checkpoint of eFormer" in cli("cp", path, "copy", status=2).err
        path = path.parent
    cli("cp", path, "copy")
    assert cli("diff", path, "copy", "--values", "--json").json["same"] is True
    for file in path.rglob("*"):
        assert file.is_dir() or (tmp_path / "copy" / file.relative_to(path)).is_file()


def test_cp_leaves_nothing_of_a_damaged_checkpoint_of_another_program(
    cli: Run, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(SAMPLES / "levanter" / "step-7", tmp_path / "step-7"))
    chunk = source / "model/layers/0/weight/0.0"
    chunk.write_bytes(chunk.read_bytes()[:-7])
    assert f"{source} is damaged" in cli("cp", source, "copies/a", status=2).err
    assert list((tmp_path / "copies").iterdir()) == []


def test_verify_finds_chunks_that_are_missing(cli: Run, tmp_path: Path) -> None:
    root = Path(shutil.copytree(SAMPLES / "t5x" / "v3_save_f32", tmp_path / "run"))
    (root / "checkpoint_42" / "target.bias" / "0.0").unlink()
    (damage,) = cli("verify", root, "--json", status=1).json["damage"]
    assert damage["leaf"] == "target/bias"
    assert damage["checkpoint"] == str(root / "checkpoint_42")


def test_steps_of_other_programs_runs_are_listed_and_verified(cli: Run, tmp_path: Path) -> None:
    run = SAMPLES / "t5x" / "v3_keep_pinned"
    steps = cli("ls", run, "--json").json["steps"]
    assert [(step["step"], step["pinned"]) for step in steps] == [(2, True), (4, False), (5, False)]
    assert "checkpoint_4" in cli("ls", run).out
    assert len(cli("verify", run, "--json").json["checkpoints"]) == 3

    steps = cli("ls", SAMPLES / "eformer", "--json").json["steps"]
    assert [(step["step"], step["temporary"]) for step in steps] == [
        (10, False),
        (20, False),
        (30, True),
    ]
    assert steps[0]["time"].startswith("2026-11-")
    levanter = cli("ls", SAMPLES / "levanter", "--json").json["steps"]
    assert [Path(step["path"]).name for step in levanter] == ["step-7"]

    for step in (7, 10):
        content = (SAMPLES / "flax_msgpack" / "all_types.msgpack").read_bytes()
        (tmp_path / f"checkpoint_{step}").write_bytes(content)
    found = cli("ls", ".", "--json").json["steps"]
    assert [step["step"] for step in found] == [7, 10]
    (tmp_path / "checkpoint_7.5").write_bytes(b"\x80")
    found = cli("ls", ".", "--keep-last", 2, "--json").json["steps"]
    assert [step["step"] for step in found] == [7, 7.5, 10]
    assert [bool(step["kept_by"]) for step in found] == [False, True, True]
    assert "7.5" in cli("ls", ".").out


def test_prune_deletes_steps_of_other_programs_runs_only(cli: Run, tmp_path: Path) -> None:
    root = Path(shutil.copytree(SAMPLES / "t5x" / "v3_keep_pinned", tmp_path / "run"))
    running = root / "checkpoint_8.tmp-1790000000"  # what T5X calls a save that goes on
    (root / "checkpoint_999.tmp-0").rename(running)
    kept = cli("ls", root, "--keep-last", 1, "--json").json["steps"]
    assert {step["step"]: step["kept_by"] for step in kept} == {
        2: ["pinned"],
        4: [],
        5: ["last 1", "newest"],
    }
    done = cli("prune", root, "--keep-last", 1, "--yes", "--json").json["steps"]
    assert [step["step"] for step in done if step["deleted"]] == [4]
    assert sorted(path.name for path in root.iterdir() if "checkpoint_8" not in path.name) == [
        *("checkpoint_2", "checkpoint_5"),
    ]
    assert (running / "checkpoint").is_file()
    cli("report", root, "-o", "page.html")
    assert "1790000000" not in (tmp_path / "page.html").read_text()

    for step in (7, 8, 10):
        content = (SAMPLES / "flax_msgpack" / "all_types.msgpack").read_bytes()
        (tmp_path / "flax").mkdir(exist_ok=True)
        (tmp_path / "flax" / f"checkpoint_{step}").write_bytes(content)
    cli("prune", "flax", "--keep-last", 2, "--yes")
    assert sorted(path.name for path in (tmp_path / "flax").iterdir()) == [
        *("checkpoint_10", "checkpoint_8"),
    ]
    found = cli("prune", SAMPLES / "eformer", "--keep-last", 1, "--dry-run", "--json").json
    assert {step["step"]: step["kept_by"] for step in found["steps"]} == {
        10: [],
        20: ["last 1"],
        30: ["temporary", "newest"],
    }


def test_rm_deletes_steps_of_other_programs_runs_only(cli: Run, tmp_path: Path) -> None:
    for name in ("t5x/v3_keep_pinned", "levanter", "eformer", "safetensors"):
        shutil.copytree(SAMPLES / name, tmp_path / name)
    assert "is pinned" in cli("rm", "t5x/v3_keep_pinned/checkpoint_2", "--yes", status=2).err
    for step in ("t5x/v3_keep_pinned/checkpoint_4", "levanter/step-7", "eformer/run-20_structured"):
        cli("rm", step, "--yes")
        assert not (tmp_path / step).exists()
    for other in ("safetensors", "eformer/run-10_unstructured/dense"):
        cli("rm", other, "--yes", status=2)
        assert (tmp_path / other).is_dir()


def test_a_directory_that_no_reader_knows_is_refused_with_what_is_there(
    cli: Run, tmp_path: Path
) -> None:
    for step in (1, 2):
        (tmp_path / f"run/at_{step}").mkdir(parents=True)
        save_file({"w": np.ones(2)}, tmp_path / f"run/at_{step}/model.safetensors")
    for command in ("ls", "verify"):
        error = cli(command, "run", status=2).err
        assert error.startswith("error: No checkpoint at ")
        assert "at_1, at_2" in error


def test_plugins_lists_the_formats_that_are_built_in(cli: Run) -> None:
    found = cli("plugins", "--json").json
    names = {one["name"] for one in found["formats"]}
    assert names == {name for name, _, _ in LEAVES.values()}
    assert {one["extra"] for one in found["formats"]} == {None}
    assert "safetensors   nothing" in cli("plugins").out


def test_commands_recognize_files_of_others(cli: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=np.ones(2))
    for command in ("tree", "stats", "verify", "ls"):
        err = cli(command, "w.npz", status=2).err
        assert "an archive of NumPy arrays" in err
        assert "Other formats" not in err
