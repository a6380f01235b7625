"""`orbit-ckpt convert`: from every format into those that can be written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from tests.cli.conftest import Run
from tests.cli.test_terminal import ESCAPE, OnTerminal
from tests.formats.zarr_samples import named_leaves

SAMPLES = Path(__file__).parent.parent / "formats" / "samples"


def numbers(path: Path) -> dict[str, Any]:
    """Return the arrays and numbers of a checkpoint by their names, joined by slashes."""
    return {name: np.asarray(value) for name, value in named_leaves(ocp.load(path)).items()}


def check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        assert found[name].tobytes() == value.tobytes(), name


def test_an_unknown_format_is_refused_with_all_that_can_be_written(
    cli: Run, tmp_path: Path
) -> None:
    found = cli("convert", SAMPLES / "levanter/step-7", "copy", "--to", "hdf5", status=2)
    for name in ("'hdf5'", "'orbit'", "'safetensors'", "'flax'", "'t5x'"):
        assert name in found.err
    assert not (tmp_path / "copy").exists()


def test_the_name_of_the_destination_may_tell_the_format(cli: Run, tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"w": np.arange(3.0)})
    assert cli("convert", "a", "a.safetensors", "--json").json["to"] == "safetensors"
    np.testing.assert_array_equal(ocp.load(tmp_path / "a.safetensors")["w"], np.arange(3.0))
    found = cli("convert", "a", "copy", status=2)
    assert "copy names no format. Give --to with one of: flax, orbit, safetensors" in found.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "to"),
    [
        ("t5x/v3_save_f32", "orbit"),
        ("eformer/run-20_structured", "t5x"),
        ("levanter/step-7", "flax"),
        ("t5x/tf_t5_ckpt", "t5x"),
    ],
)
def test_checkpoints_of_other_programs_are_converted(
    sample: str, to: str, cli: Run, tmp_path: Path
) -> None:
    found = cli("convert", SAMPLES / sample, "copy", "--to", to, "--json").json
    assert (found["command"], found["to"]) == ("convert", to)
    assert found["destination"] == str(tmp_path / "copy")
    assert found["bytes"] > 0
    check_same(numbers(tmp_path / "copy"), numbers(SAMPLES / sample))


@pytest.mark.slow
def test_rules_compute_with_jax_on_the_host_in_any_width(cli: Run, tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(3))
    with jax.enable_x64(True):
        wide = {str(i): jnp.full((2, 3), 1 / 3 + i, jnp.float64) for i in range(2)}
        state = {"keys": {"0": keys[0], "1": keys[1]}, "raw": np.ones(2, np.uint32), "wide": wide}
        ocp.save(tmp_path / "from", state)
    (tmp_path / "rules.json").write_text(
        json.dumps(
            {
                "rules": [
                    {"rule": "stack", "pattern": "keys/*", "to": "keys"},
                    {"rule": "wrap_keys", "pattern": "raw"},
                    {"rule": "stack", "pattern": "wide/*", "to": "wide"},
                    {"rule": "transpose", "pattern": "wide"},
                ]
            }
        )
    )
    cli("convert", "from", "out", "--to", "orbit", "--rules", "rules.json")
    found = ocp.load(tmp_path / "out", only=["keys", "raw"])
    assert (jax.random.key_data(found["keys"]) == jax.random.key_data(keys)).all()
    assert jax.random.key_data(found["raw"]).tolist() == [1, 1]
    wanted = np.stack([np.asarray(value) for value in wide.values()]).T
    lazy = ocp.load(tmp_path / "out", lazy=True)["wide"]
    assert lazy.dtype == np.float64
    np.testing.assert_array_equal(lazy[...], wanted)


@pytest.mark.slow
def test_options_choose_rename_and_cast(cli: Run, tmp_path: Path) -> None:
    state = {"params": {"w": np.ones((4, 8), np.float32), "b": np.zeros(4)}, "step": 7}
    ocp.save(tmp_path / "from", state)
    (tmp_path / "rules.toml").write_text(
        '[[rules]]\nrule = "rename"\npattern = "params/**"\nto = \'model/\\1\'\n'
    )
    args = ["--rules", "rules.toml", "--skip", "step", "--memory", 64]
    casts = ["--cast", "model/w=bfloat16", "--cast", "float32"]
    text = cli("convert", "from", "out", "--to", "safetensors", *args, *casts).out
    assert text.startswith(f"{tmp_path / 'from'} -> {tmp_path / 'out'}: safetensors, ")
    found = ocp.load(tmp_path / "out")
    assert {name: value.dtype.name for name, value in found.items()} == {
        "model.w": "bfloat16",
        "model.b": "float32",
    }
    shards = ["--max-shard-bytes", 100, "--only", "params/**"]
    cli("convert", "from", "shards", "--to", "safetensors", *shards)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) == 2


@pytest.mark.slow
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(cli: Run, tmp_path: Path) -> None:
    state = {"w": np.ones(4), "name": "text", "key": jax.random.key(0)}
    ocp.save(tmp_path / "from", state)
    (tmp_path / "bad.toml").write_text('[[rules]]\nrule = "rename"\n')
    cases = {
        "safetensors cannot hold 2 leaves: key (key<fry>), name (str). Skip": [
            *("--to", "safetensors"),
        ],
        "cannot hold 1 leaves: key (key<fry>). Skip": ["--to", "flax"],
        "T5X cannot hold 1 leaves: key (key<fry>). Skip": ["--to", "t5x"],
        "is no dtype": ["--to", "flax", "--cast", "w=float7"],
        "to": ["--to", "flax", "--rules", "bad.toml"],
        "has a single file and no shards; give no size of them": [
            "--to",
            "flax",
            "--max-shard-bytes",
            10,
        ],
        "No checkpoint at": ["--to", "flax", "--only", "x"],
    }
    for message, args in cases.items():
        source = "nowhere" if message.startswith("No checkpoint") else "from"
        found = cli("convert", source, "out", *args, status=2)
        assert message in found.err
        assert all(note.startswith("  See https://") for note in found.err.splitlines()[1:])
        assert not re.search(r"(skip|overwrite)=|max_shard_bytes|LazyArray", found.err)
        assert found.out == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.toml", "from"]
    cli("convert", "from", "out", "--to", "npz", status=2)


@pytest.mark.slow
def test_what_is_there_is_replaced_only_if_asked_for(cli: Run, tmp_path: Path) -> None:
    ocp.save(tmp_path / "from", {"w": np.ones(4)})
    for to in ("flax", "orbit", "safetensors"):
        cli("convert", "from", f"{to}.{to}", "--to", to)
        again = ["convert", "from", f"{to}.{to}", "--to", to]
        assert "exists already. Pass --overwrite" in cli(*again, status=2).err
        cli(*again, "--overwrite")
    cli("convert", "from", "checkpoint_1", "--to", "t5x")
    refused = cli("convert", "from", "checkpoint_1", "--to", "t5x", "--overwrite", status=2)
    assert "exists already. Choose another path" in refused.err
    assert ocp.load(tmp_path / "checkpoint_1")["w"].tolist() == [1.0] * 4


@pytest.mark.slow
@pytest.mark.parametrize("to", ["orbit", "safetensors", "flax"])
def test_damage_on_the_way_is_an_error_and_leaves_nothing(
    to: str, cli: Run, tmp_path: Path
) -> None:
    ocp.save(tmp_path / "from", {"w": np.arange(100_000.0), "a": np.ones(3)})
    (data,) = (p for p in (tmp_path / "from").rglob("d/*") if p.stat().st_size > 1000)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    found = cli("convert", "from", "to/out", "--to", to, status=2)
    assert "checksum" in found.err
    assert list(tmp_path.glob("to/*")) == list(tmp_path.glob("to/.*")) == []


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint that takes long enough for a bar to be drawn, and to be stopped."""
    path = tmp_path_factory.mktemp("large") / "checkpoint"
    rng = np.random.default_rng(0)
    ocp.save(path, {f"w{i}": rng.standard_normal((1000, 1000)) for i in range(12)})
    return path


@pytest.mark.slow
@pytest.mark.parametrize("to", ["orbit", "t5x", "safetensors", "flax"])
def test_progress_is_shown_and_an_interrupt_leaves_nothing(
    to: str, large: Path, tmp_path: Path, on_terminal: OnTerminal
) -> None:
    some = ("--only", "w1*") if to == "t5x" else ()  # which compresses, so that all take longer
    size = "24" if some else "96"
    child = on_terminal("convert", large, tmp_path / "done", "--to", to, *some)
    child.expect("Converting")
    status, text = child.end()
    shown = ESCAPE.sub("", text)
    assert status == 0
    assert re.search(rf"\d+(\.\d+)?/{size}(\.0)? MB", shown), shown  # done of all
    assert re.search(r"\d+:\d\d:\d\d", shown), shown  # time left

    child = on_terminal("convert", large, tmp_path / "to" / "out", "--to", to, *some)
    child.expect(rf"[1-9][0-9.]*/{size}(\.0)? MB")
    child.interrupt()
    status, text = child.end()
    assert "Traceback" not in text
    left = [p.name for p in (tmp_path / "to").iterdir()] if (tmp_path / "to").exists() else []
    assert left in ([], ["out"])
    assert status != 0 or left == ["out"]


def test_dtypes_have_their_short_names(cli: Run, tmp_path: Path) -> None:
    ocp.save(tmp_path / "from", {"w": np.ones((2, 3), np.float32)})
    cli("convert", "from", "to", "--to", "orbit", "--cast", "bf16")
    assert str(ocp.load(tmp_path / "to")["w"].dtype) == "bfloat16"
    cli("export", "to", "w", "w.npy", "--cast", "fp32")
    assert np.load(tmp_path / "w.npy").dtype == np.float32
    error = cli("export", "to", "w", "v.npy", "--cast", "f33", status=2).err
    assert "'f33' is no dtype" in error
