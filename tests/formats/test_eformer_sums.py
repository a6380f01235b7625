"""SHA-256 sums of eFormer's arrays: samples that eFormer 0.0.101 wrote on four devices, damaged.

`validated` is a tree of `save_tree` with `enable_validation`; `validated_prefixes` has it as
`model`, and one saved after it as `tx`, of which alone eFormer keeps the sums.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import orbit_ckpt as ocp
from orbit_ckpt import transform as tf
from orbit_ckpt.errors import CorruptionError
from tests.formats.zarr_samples import SAMPLES, named_leaves, write_array, write_json
from tests.support import make_mesh

RUNS = SAMPLES / "eformer"
KERNEL = "dense/kernel"
SUMS = "checkpoint_metadata.json"


def expected(add: int) -> dict[str, np.ndarray]:
    """Return the arrays that were saved."""
    return {
        KERNEL: np.arange(24, dtype=np.float32).reshape(6, 4) + add,
        "dense/bias": (np.arange(4) + add).astype(ml_dtypes.bfloat16),
        "layers/0/w": np.arange(6, dtype=np.int32).reshape(2, 3) + add,
        "count": np.array(add, np.int32),
        "mask": np.array([True, False]),
    }


def copied(tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(RUNS / name, tmp_path / name))


def flip(file: Path) -> None:
    """Change a number of a small chunk, which zstd stores as it is."""
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def edit(file: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(file.read_text())
    change(document)
    write_json(file, document)


def sum_of(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def chunk_of(name: str) -> str:
    return f"{name}/" + ".".join("0" * max(1, expected(1)[name].ndim))


def check(found: object, saved: dict[str, np.ndarray]) -> None:
    leaves = named_leaves(found)
    assert sorted(leaves) == sorted(saved)
    for name, array in saved.items():
        assert (leaves[name].dtype, leaves[name].tolist()) == (array.dtype, array.tolist())


def test_arrays_are_compared_and_intact_ones_are_what_was_saved(tmp_path: Path) -> None:
    check(ocp.load(RUNS / "validated"), expected(1))
    report = ocp.verify(RUNS / "validated")
    assert report.is_intact
    assert (report.leaves, report.chunks, report.unchecked) == (5, 8, ())
    empty = copied(tmp_path, "validated")
    flip(empty / KERNEL / "0.1")
    edit(empty / SUMS, lambda d: d.update(checksum={}))
    assert named_leaves(ocp.load(empty))[KERNEL].tolist() != expected(1)[KERNEL].tolist()


@pytest.mark.parametrize("name", [n for n in expected(1) if n != "mask"])
def test_a_byte_that_was_flipped_is_found_with_leaf_file_and_sums(
    tmp_path: Path, name: str
) -> None:
    run = copied(tmp_path, "validated")
    flip(run / chunk_of(name))
    with pytest.raises(CorruptionError) as raised:
        ocp.load(run)
    error = raised.value
    assert (error.path, error.file) == (name, str(run / name))
    for part in (f"{name}: ", str(run / name), str(run / SUMS), sum_of(expected(1)[name])):
        assert part in str(error)
    rest = ocp.load(run, skip=name)
    assert len(jax.tree.leaves(rest)) == 4
    report = ocp.verify(run)
    (damage,) = report.damage
    assert (damage.leaf, damage.file) == (name, str(run / name))
    assert "its SHA-256 is" in damage.what
    assert report.leaves == 5


def test_whatever_reads_an_array_whole_or_in_order_compares_it(tmp_path: Path) -> None:
    run = copied(tmp_path, "validated")
    flip(run / KERNEL / "0.1")
    rows = jax.NamedSharding(make_mesh(x=2), jax.P("x"))
    everywhere = jax.NamedSharding(make_mesh(x=2), jax.P())
    lazy = ocp.load(run, lazy=True)["dense"]["kernel"]
    ways: list[Callable[[], object]] = [
        lambda: ocp.load(run, sharding=everywhere, only=KERNEL),
        lambda: ocp.load(run, sharding=rows, only=KERNEL),
        lambda: ocp.load(run, only=KERNEL, cast={"**": np.float16}),
        lambda: ocp.load(run, only=KERNEL, transforms=[tf.Map(KERNEL, np.sum)]),
        lazy.get,
        lambda: lazy[...],
        lambda: ocp.convert(run, tmp_path / "m.safetensors", to="safetensors"),
        lambda: ocp.convert(run, tmp_path / "step"),
        lambda: ocp.diff(run, RUNS / "validated", values=True),
    ]
    for way in ways:
        with pytest.raises(CorruptionError, match=r"dense/kernel: .* its SHA-256 is"):
            way()
    assert not (tmp_path / "step").exists()


def test_parts_are_read_without_the_sum_which_verify_compares(tmp_path: Path) -> None:
    run = copied(tmp_path, "validated")
    flip(run / KERNEL / "0.1")
    columns = jax.NamedSharding(make_mesh(x=2), jax.P(None, "x"))
    found = ocp.load(run, sharding=columns, only=KERNEL)["dense"]["kernel"]
    assert np.asarray(found)[3:].tolist() == expected(1)[KERNEL][3:].tolist()
    part = ocp.load(run, lazy=True)["dense"]["kernel"][3:]
    assert part.tolist() == expected(1)[KERNEL][3:].tolist()
    assert [damage.leaf for damage in ocp.verify(run).damage] == ["dense/kernel"]


def test_sums_are_of_the_tree_saved_last_if_its_names_say_which_that_is(tmp_path: Path) -> None:
    run = copied(tmp_path, "validated_prefixes")
    check(ocp.load(run / "model"), expected(1))
    report = ocp.verify(run)
    assert report.is_intact
    assert [(u.what, u.count) for u in report.unchecked] == [
        ("leaves of eFormer without checksums: decoded only", 5)
    ]
    flip(run / "tx" / "mu" / KERNEL / "0.0")
    flip(run / "model" / KERNEL / "0.0")
    ocp.load(run / "model")
    for path in (run, run / "tx", run):
        with pytest.raises(CorruptionError, match="its SHA-256 is"):
            ocp.load(path)


def test_no_sum_is_compared_of_which_it_is_not_known_what_it_is_of(tmp_path: Path) -> None:
    run = copied(tmp_path, "validated")
    index = json.loads((run / "tensorstore_index.json").read_text())
    entries = [{**entry, "path": f"ema/{entry['path']}"} for entry in index["arrays"]]
    for entry in index["arrays"]:  # a second tree with the same names and other values
        shutil.copytree(run / entry["path"], run / "ema" / entry["path"], dirs_exist_ok=True)
    flip(run / "ema" / KERNEL / "0.0")
    index["prefixes"] = {"ema": entries}
    write_json(run / "tensorstore_index.json", index)
    ocp.load(run / "ema")
    assert sum(one.count for one in ocp.verify(run).unchecked) == 10


STRANGE: list[Callable[[dict[str, Any]], object]] = [
    lambda d: d.pop("checksum"),
    lambda d: d.update(checksum=7),
    lambda d: d.update(checksum={"dense.kernel": "0" * 64}),
    lambda d: d.pop("array_metadata"),
    lambda d: d.update(array_metadata=[]),
    lambda d: d["checksum"].update({"dense.kernel": "0" * 32}),
    lambda d: d["checksum"].update({"dense.kernel": 5}),
    lambda d: d["checksum"].update({"dense.kernel": "crc32c:" + "0" * 57}),
    lambda d: d["array_metadata"]["dense.kernel"].update(dtype="float64"),
    lambda d: d["array_metadata"]["dense.kernel"].update(dtype="no dtype"),
    lambda d: d["array_metadata"]["dense.kernel"].update(shape=[24]),
    lambda d: d["array_metadata"].update({"dense.kernel": None}),
]


@pytest.mark.parametrize("change", STRANGE, ids=range(len(STRANGE)))
def test_sums_that_are_not_understood_are_no_damage(
    tmp_path: Path, change: Callable[[Any], object]
) -> None:
    run = copied(tmp_path, "validated")
    flip(run / KERNEL / "0.0")
    edit(run / SUMS, change)
    ocp.load(run)
    report = ocp.verify(run)
    assert report.is_intact
    assert report.unchecked


def big_run(root: Path, array: np.ndarray) -> Path:
    """Write a checkpoint of one array as eFormer does."""
    entry = write_array(root / "w", array)
    write_json(root / "tensorstore_index.json", {"arrays": [{"path": "w", **entry}]})
    write_json(root / SUMS, {"checksum": {"w": sum_of(array)}, "array_metadata": {"w": entry}})
    return root


def test_arrays_above_the_budget_are_compared_block_by_block(tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((700, 1100), np.float32)
    run = big_run(tmp_path / "run", array)
    budget = 1 << 20
    assert ocp.verify(run, max_bytes=budget).unchecked == ()
    ocp.convert(run, tmp_path / "m.safetensors", to="safetensors", max_bytes=budget)
    assert np.array_equal(ocp.load(tmp_path / "m.safetensors")["w"], array)
    edit(run / SUMS, lambda d: d["checksum"].update(w=sum_of(array + 1)))
    assert [d.leaf for d in ocp.verify(run, max_bytes=budget).damage] == ["w"]
    with pytest.raises(CorruptionError, match="its SHA-256 is"):
        ocp.convert(run, tmp_path / "n.safetensors", to="safetensors", max_bytes=budget)
    assert not (tmp_path / "n.safetensors").exists()


def test_a_chunk_that_cannot_be_decoded_is_told_as_that(tmp_path: Path) -> None:
    run = copied(tmp_path, "validated")
    file = run / KERNEL / "1.0"
    file.write_bytes(file.read_bytes()[:-3])
    (run / "mask" / "0").unlink()
    damage = {one.leaf: one for one in ocp.verify(run).damage}
    assert sorted(name for name in damage if name) == ["dense/kernel", "mask"]
    assert damage["dense/kernel"].chunk == "dense.kernel/1.0"
    assert "missing" in damage["mask"].what


def test_sums_in_safetensors_are_compared(tmp_path: Path) -> None:
    source = RUNS / "safetensors_single" / "model.safetensors"
    report = ocp.verify(source)
    assert (report.is_intact, report.unchecked) == (True, ())
    file = tmp_path / "model.safetensors"
    shutil.copy(source, file)
    flip(file)
    with pytest.raises(CorruptionError, match=r"b: the array in .*model\.safetensors is damaged"):
        ocp.load(file)
    assert ocp.load(file, only="a.w")["a.w"].shape == (2, 3)
    assert [damage.leaf for damage in ocp.verify(file).damage] == ["b"]


def test_safetensors_of_others_may_call_anything_a_checksum(tmp_path: Path) -> None:
    value = {"w": np.ones(3, np.float32)}
    for i, text in enumerate(["abc", "{}", '{"w": 3}', "[", json.dumps({"w": "0" * 64})]):
        file = tmp_path / f"{i}.safetensors"
        save_file(value, file, metadata={"checksum": text})
        assert ocp.load(file)["w"].tolist() == [1, 1, 1]
        assert ocp.verify(file).is_intact


def test_a_conversion_does_not_carry_sums_on_to_values_that_rules_changed(tmp_path: Path) -> None:
    source = RUNS / "safetensors_single" / "model.safetensors"
    out = tmp_path / "out.safetensors"
    ocp.convert(source, out, to="safetensors", transforms=[tf.Map("b", lambda b: b + b)])
    assert ocp.load(out)["b"].tolist() == (2 * ocp.load(source)["b"]).tolist()
    with safe_open(os.fspath(out), "numpy") as opened:
        assert sorted(opened.metadata()) == [
            "custom_metadata",
            "framework_version",
            "timestamp",
            "version",
        ]
