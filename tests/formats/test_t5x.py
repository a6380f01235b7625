"""Checkpoints that T5X wrote, copies of them that it would refuse, and damaged ones."""

from __future__ import annotations

import contextlib
import json
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flax.serialization as flax
import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt import t5x
from orbit_ckpt._src.formats.t5x.write import write
from orbit_ckpt._src.formats.writing import WriteRequest
from orbit_ckpt.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    TreeMismatchError,
    UnsafePathError,
    VersionError,
)
from orbit_ckpt.transform import StateTransform
from tests.formats.t5x_samples import EXPECTED, SAMPLES, check, named_leaves
from tests.support import make_mesh, scratch

SAVED = SAMPLES / "v3_save_f32" / "checkpoint_42"
STEPS = [
    (name, step)
    for name, sample in EXPECTED.items()
    if name.startswith(("v3_", "upstream_tiny_t5"))
    for step in sample["values"]
]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAVED, tmp_path / "run" / "checkpoint_42"))


def rewrite(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the msgpack file of a checkpoint holds."""
    file = directory / "checkpoint"
    fields: Any = flax.msgpack_restore(file.read_bytes())
    file.write_bytes(flax.msgpack_serialize(change(fields) or fields))


def respec(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], None]:
    """Return what changes the specification of the kernel."""
    return lambda fields: fields["optimizer"]["target"].update(
        kernel=change(spec := fields["optimizer"]["target"]["kernel"]) or spec
    )


@pytest.mark.parametrize(("name", "step"), STEPS)
def test_samples_have_the_values_that_t5x_restored(name: str, step: str) -> None:
    expected = EXPECTED[name]["values"][step]
    directory = SAMPLES / name / f"checkpoint_{step}"
    check(ocp.load(directory), expected)
    check(ocp.load(directory / "checkpoint"), expected)
    check(ocp.load(SAMPLES / name, reader=t5x.T5XFormat(step=int(step))), expected)


@pytest.mark.parametrize("name", ["v3_save_f32", "v3_keep_pinned"])
def test_of_a_run_the_latest_finished_step_is_loaded(name: str) -> None:
    values = EXPECTED[name]["values"]
    check(ocp.load(SAMPLES / name), values[max(values, key=int)])


def test_steps_are_those_that_have_a_msgpack_file() -> None:
    run = SAMPLES / "v3_keep_pinned"
    assert t5x.all_steps(run) == EXPECTED["v3_keep_pinned"]["history"][-1][1] == [2, 4, 5]
    assert t5x.latest_step(run) == 5
    assert t5x.find_checkpoint(run) == run / "checkpoint_5" / "checkpoint"
    assert t5x.find_checkpoint(str(run), 4) == run / "checkpoint_4" / "checkpoint"
    assert t5x.find_checkpoint(run / "checkpoint_2") == run / "checkpoint_2" / "checkpoint"
    file = run / "checkpoint_2" / "checkpoint"
    assert t5x.find_checkpoint(file, 5) == file
    for path, step in [(run, 8), (run / "checkpoint_8", None), (run, 1000)]:
        with pytest.raises(CheckpointNotFoundError, match="Path is not a valid T5X checkpoint: "):
            t5x.find_checkpoint(path, step)
    assert t5x.all_dataset_checkpoint_steps(SAMPLES / "v3_two_hosts_ds") == [7]
    assert t5x.all_dataset_checkpoint_steps(run) == []


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_run_that_was_not_begun_has_no_steps(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "run"
    if kind == "file":
        root.touch()
    assert t5x.all_steps(root) == []
    assert t5x.latest_step(root) is None
    assert t5x.all_dataset_checkpoint_steps(root) == []
    with pytest.raises(CheckpointNotFoundError, match=r"run has no train_ds-000-of-001\.index"):
        t5x.dataset_prefix(root, 0, 1)


def test_a_step_whose_number_is_padded_is_found(tmp_path: Path) -> None:
    shutil.copytree(SAVED, tmp_path / "checkpoint_0042")
    assert t5x.all_steps(tmp_path) == [42]
    check(ocp.load(tmp_path), EXPECTED["v3_save_f32"]["values"]["42"])
    assert t5x.find_checkpoint(tmp_path, 42).parent.name == "checkpoint_0042"


def test_step_0_is_found_like_any_other(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match=f"No checkpoints found in {tmp_path}"):
        t5x.find_checkpoint(tmp_path)
    assert t5x.latest_step(tmp_path) is None
    shutil.copytree(SAVED, tmp_path / "checkpoint_0")
    assert t5x.latest_step(tmp_path) == 0
    assert t5x.find_checkpoint(tmp_path) == tmp_path / "checkpoint_0" / "checkpoint"
    check(ocp.load(tmp_path), EXPECTED["v3_save_f32"]["values"]["42"])


def test_a_save_that_did_not_finish_is_no_checkpoint(saved: Path) -> None:
    temporary = saved.rename(saved.with_name("checkpoint_43.tmp-1700000000"))
    with pytest.raises(IncompleteCheckpointError, match="the save of T5X that wrote it did not"):
        ocp.load(temporary)
    with pytest.raises(CheckpointNotFoundError, match=r"No checkpoints found in .*/run"):
        ocp.load(temporary.parent)


def test_metadata_targets_shardings_and_lazy_arrays_work_as_for_own_checkpoints(
    tmp_path: Path,
) -> None:
    assert ocp.metadata(SAVED)["target"]["kernel"].shape == (2, 16)
    by_column = jax.NamedSharding(make_mesh(x=4), jax.P(None, "x"))
    like = {"target": {"kernel": jax.ShapeDtypeStruct((2, 16), np.float32, sharding=by_column)}}
    kernel = ocp.load(SAVED, like, unexpected="ignore")["target"]["kernel"]
    assert kernel.sharding == by_column
    assert np.array_equal(kernel, ocp.load(SAVED)["target"]["kernel"])
    bf16 = ocp.load(SAVED, cast={"target/**": "bfloat16"})
    assert {leaf.dtype.name for leaf in named_leaves(bf16["target"]).values()} == {"bfloat16"}
    assert bf16["state"]["step"].dtype == np.int32  # only what the pattern names
    lazy = ocp.load(SAVED, lazy=True)
    assert np.array_equal(lazy["target"]["kernel"][1, 3:5], kernel[1, 3:5])
    ocp.save(tmp_path / "copy", lazy)
    check(ocp.load(tmp_path / "copy"), EXPECTED["v3_save_f32"]["values"]["42"])


def test_a_target_that_differs_is_an_error() -> None:
    like = {"target": {"kernel": np.zeros((2, 16), np.float32), "extra": np.zeros(2)}}
    with pytest.raises(TreeMismatchError, match=r"target/extra"):
        ocp.load(SAVED, like, unexpected="ignore")
    like = {"target": {"kernel": np.zeros((4, 8), np.float32)}}
    with pytest.raises(TreeMismatchError, match=r"target/kernel.*2, 16"):
        ocp.load(SAVED, like, unexpected="ignore")
    inline = {"state": {"param_states": {"kernel": np.zeros(5, np.uint8)}}}
    with pytest.raises(TreeMismatchError, match=r"state/param_states/kernel"):
        ocp.load(SAVED, inline, unexpected="ignore")


def test_a_fallback_fills_only_what_is_missing() -> None:
    fallback = {"target": {"kernel": np.ones((2, 16), np.float32), "extra": np.full(2, 7.0)}}
    like = {"target": {"kernel": np.zeros((2, 16), np.float32), "extra": np.zeros(2)}}
    found = ocp.load(SAVED, like, unexpected="ignore", fallback=fallback)["target"]
    assert found["extra"].tolist() == [7, 7]
    assert found["kernel"][0, :3].tolist() == [0.0, 0.3333333432674408, 0.6666666865348816]


def test_only_what_is_asked_for_is_read(saved: Path) -> None:
    shutil.rmtree(saved / "target.bias")
    found = ocp.load(saved, skip="target/bias")
    assert sorted(found["target"]) == ["kernel"]
    with pytest.raises(CorruptionError, match=r"target.bias: .* is missing"):
        ocp.load(saved)


def test_partial_copy_loads_what_a_function_of_the_state_keeps(saved: Path) -> None:
    def drop(state: dict[str, Any], target: object, *, is_resuming: bool) -> dict[str, Any]:
        del state["target"]["bias"], target, is_resuming
        return state

    before: Any = ocp.metadata(saved).tree
    shutil.rmtree(saved / "target.bias")
    found = ocp.load(saved, transforms=[StateTransform(drop)])
    assert sorted(found["target"]) == ["kernel"]
    after: Any = ocp.metadata(saved).tree
    assert after["target"]["bias"].shape == before["target"]["bias"].shape
    assert not ocp.verify(saved).is_intact


def test_old_versions_are_refused_unless_allowed(saved: Path) -> None:
    sample = SAMPLES / "v0_refused" / "checkpoint_42"
    expected = EXPECTED["v0_refused"]
    with pytest.raises(FormatError) as raised:
        ocp.load(sample)
    assert expected["error"]["message"] in str(raised.value)
    legacy = t5x.T5XFormat(allow_legacy=True)
    check(ocp.load(sample, reader=legacy), expected["remap_False_values"])
    rewrite(saved, lambda fields: fields.update(version=1))
    with pytest.raises(FormatError, match=r"earlier than 2 are not supported. Got version: 1"):
        ocp.load(saved)
    check(ocp.load(saved, reader=legacy), EXPECTED["v3_save_f32"]["values"]["42"])
    rewrite(saved, lambda fields: fields.update(version=4))
    with pytest.raises(VersionError, match="version 4"):
        ocp.load(saved)


def test_bfloat16_that_version_2_stored_as_uint16_is_read_when_asked_for() -> None:
    sample = SAMPLES / "v2_bf16_as_uint16" / "checkpoint_42"
    expected = EXPECTED["v2_bf16_as_uint16"]
    message = expected["error"]["message"].replace("/samples/t5x", str(SAMPLES))
    with pytest.raises(FormatError) as raised:
        ocp.load(sample)
    assert message in str(raised.value)
    reader = t5x.T5XFormat(uint16="as_bfloat16")
    check(ocp.load(sample, reader=reader), expected["bf16_values_if_bits_are_reinterpreted"]["42"])
    assert ocp.metadata(sample, reader=reader)["target"]["bias"].dtype == ml_dtypes.bfloat16
    bits = ocp.load(sample, reader=t5x.T5XFormat(uint16="as_uint16"))["target"]["bias"]
    assert bits.dtype == np.uint16
    assert bits.view(ml_dtypes.bfloat16).tolist() == [[0], [1], [2], [3]]


def test_other_calls_read_as_asked_for_too(tmp_path: Path) -> None:
    reader = t5x.T5XFormat(uint16="as_bfloat16")
    path = SAMPLES / "v2_bf16_as_uint16" / "checkpoint_42"
    with pytest.raises(VersionError):
        ocp.convert(path, tmp_path / "copy")
    ocp.convert(path, tmp_path / "copy", reader=reader)
    assert ocp.verify(path, reader=reader).is_intact
    same = ocp.diff(path, tmp_path / "copy", values=True, reader=(reader, None))
    assert not [change for change in same.changed if change.what == "values"]
    assert same.common
    assert not ocp.diff(path, path, reader=reader)


def test_plan_reads_as_asked_for_too() -> None:
    reader = t5x.T5XFormat(uint16="as_bfloat16")
    plan = ocp.plan(SAMPLES / "v2_bf16_as_uint16", only="target/kernel", reader=reader)
    assert "bfloat16[2, 16]" in str(plan)


def test_a_checkpoint_of_tensorflow_is_no_native_one() -> None:
    sample = SAMPLES / "upstream_mtf_tiny_t5"
    message = EXPECTED["behaviours"]["tf checkpoint as t5x"]["message"]
    with pytest.raises(FormatError, match=message.partition(".")[0]):
        ocp.load(sample, reader=t5x.T5XFormat())


def moved(path: str) -> Callable[[dict[str, Any]], object]:
    return lambda spec: spec["kvstore"].update(path=path)


def old_path(spec: dict[str, Any]) -> None:
    spec["path"] = spec["kvstore"].pop("path")
    spec["transform"] = {"input_inclusive_min": [0, 0], "input_exclusive_max": [2, 16]}


def gcs(spec: dict[str, Any]) -> None:
    spec["kvstore"].update(driver="gcs", bucket="t5x-dummy-bucket")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(old_path, id="path at the top"),
        pytest.param(lambda spec: spec["kvstore"].update(driver="gfile"), id="gfile"),
        pytest.param(gcs, id="gcs"),
        pytest.param(moved("target.kernel"), id="no slash at the end"),
        pytest.param(moved("/somewhere/run/checkpoint_7/target.kernel/"), id="absolute"),
        pytest.param(lambda spec: spec.update(extra=1), id="more keys"),
        pytest.param(lambda spec: spec["metadata"].pop("chunks") and None, id="no chunks"),
        pytest.param(lambda spec: spec["metadata"].update(chunks=[1, 1]), id="other chunks"),
        pytest.param(lambda spec: spec["metadata"].update(compressor=None), id="other compressor"),
    ],
)
def test_specifications_of_all_versions_are_understood(saved: Path, change: Any) -> None:
    rewrite(saved, respec(change))
    check(ocp.load(saved), EXPECTED["v3_save_f32"]["values"]["42"])


def test_documents_that_copying_lost_are_recovered(saved: Path) -> None:
    for document in saved.glob("*/.zarray"):
        document.unlink()
    check(ocp.load(saved), EXPECTED["v3_save_f32"]["values"]["42"])
    rewrite(saved, respec(lambda spec: spec["metadata"].pop("chunks") and None))
    with pytest.raises(FormatError, match=r"target/kernel: .*zarray is missing, and the msgpack"):
        ocp.load(saved)


REFUSED: dict[str, tuple[Any, str]] = {
    "parent": (moved("../target.kernel"), "does not lead to a directory in the checkpoint"),
    "parents": (moved("a/../../../secret"), "does not lead to"),
    "backslashes": (moved("..\\secret"), "does not lead to"),
    "root": (moved("/"), "does not lead to"),
    "itself": (moved("."), "does not lead to"),
    "parent elsewhere": (moved("/etc/.."), "does not lead to"),
    "s3": (lambda spec: spec["kvstore"].update(driver="s3"), r"Unsupported TensoreStore driver."),
    "no path": (lambda spec: spec["kvstore"].pop("path") and None, 'Expects "path" to be a key'),
    "no store": (lambda spec: spec.update(kvstore=3), "Unsupported TensoreStore driver. Got None"),
    "n5": (lambda spec: spec.update(driver="n5"), "of the driver 'n5', not zarr"),
    "object": (lambda spec: spec.update(dtype="object"), "not a numeric dtype"),
    "negative": (lambda spec: spec["metadata"].update(shape=[-2, 16]), "its shape are"),
    "shape": (lambda spec: spec["metadata"].update(shape=[2, 8]), "zarray says float32 of shape"),
    "dtype": (lambda spec: spec.update(dtype="int32"), "zarray says float32 of shape"),
    "no metadata": (lambda spec: spec.update(metadata=[]), "its metadata are"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_specification_that_is_none_is_refused(saved: Path, kind: str) -> None:
    change, message = REFUSED[kind]
    secret = saved.parent / "target.kernel"
    shutil.copytree(saved / "target.kernel", secret)
    rewrite(saved, respec(change))
    with pytest.raises(FormatError, match=message):
        ocp.load(saved)


ZARRAY = json.loads((SAVED / "target.kernel" / ".zarray").read_text())


LIES: dict[str, tuple[Any, str]] = {
    "separator": ({**ZARRAY, "dimension_separator": "/../../x/"}, "its dimension_separator is"),
    "object": ({**ZARRAY, "dtype": "|O"}, "not a numeric dtype"),
    "shape": ({**ZARRAY, "shape": [2, 2**40], "chunks": [2, 2**40]}, "says float32 of shape"),
    "codec": ({**ZARRAY, "compressor": {"id": "none such"}}, "TensorStore cannot read an array"),
    "number": ({**ZARRAY, "compressor": {"id": 2**64}}, "TensorStore cannot read an array"),
    "deep": ("[" * 100_000, "not a zarr2 metadata document"),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_document_that_lies_is_refused(saved: Path, kind: str) -> None:
    document, message = LIES[kind]
    text = document if isinstance(document, str) else json.dumps(document)
    (saved / "target.kernel" / ".zarray").write_text(text)
    with pytest.raises(FormatError, match=message):
        ocp.load(saved)


@pytest.mark.parametrize("compressor", [None, {"id": "gzip", "level": 1}], ids=["raw", "gzip"])
def test_an_array_larger_than_its_files_can_hold_takes_no_memory(
    saved: Path, compressor: object
) -> None:
    shape = [2**20, 2**20]
    document = {**ZARRAY, "shape": shape, "chunks": shape, "compressor": compressor}
    (saved / "target.kernel" / ".zarray").write_text(json.dumps(document))
    rewrite(saved, respec(lambda spec: spec["metadata"].update(shape=shape)))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="cannot be in files of"):
            ocp.load(saved)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_files_may_be_links_as_caches_of_downloads_have_them(tmp_path: Path) -> None:
    value = np.random.default_rng(0).random((1024, 512))
    path, blobs = tmp_path / "snapshots" / "0123abc" / "checkpoint_1", tmp_path / "blobs"
    path.parent.mkdir(parents=True)
    blobs.mkdir()
    write(WriteRequest(path, {"w": value}))
    for i, file in enumerate([file for file in path.rglob("*") if file.is_file()]):
        file.symlink_to(file.rename(blobs / str(i)))
    assert np.array_equal(ocp.load(path)["w"], value)


def test_files_that_are_links_to_anything_else_are_refused(tmp_path: Path) -> None:
    value = np.random.default_rng(0).random((1024, 512))
    path = tmp_path / "checkpoint_1"
    write(WriteRequest(path, {"w": value}))
    for name in ("checkpoint", "w/.zarray", "w/0.0", "w"):
        moved = (path / name).rename(tmp_path / "moved")
        (path / name).symlink_to(moved)
        with pytest.raises(UnsafePathError, match="outside of the checkpoint"):
            ocp.load(path)
        assert not ocp.verify(path).is_intact
        (path / name).unlink()
        moved.rename(path / name)
    assert np.array_equal(ocp.load(path)["w"], value)


def test_a_missing_or_damaged_chunk_is_named(saved: Path) -> None:
    chunk = saved / "target.kernel" / "0.0"
    chunk.write_bytes(chunk.read_bytes()[:40])
    with pytest.raises(CorruptionError, match=r"target.kernel/0.0"):
        ocp.load(saved)
    chunk.unlink()
    with pytest.raises(CorruptionError, match=r"target.kernel/0.0"):
        ocp.load(saved)


def test_leaves_whose_names_are_the_same_with_dots_stay_apart(tmp_path: Path) -> None:
    state = {"a": {"b": np.arange(2)}, "a.b": np.arange(3)}
    (tmp_path / "checkpoint").write_bytes(
        flax.msgpack_serialize({"version": 3, "optimizer": state})
    )
    found = ocp.load(tmp_path)
    assert found["a"]["b"].tolist() == [0, 1]
    assert found["a.b"].tolist() == [0, 1, 2]


def load_whatever_it_is(directory: Path) -> None:
    with contextlib.suppress(CheckpointError):
        ocp.load(directory)


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    position = draw(st.floats(0, 1, exclude_max=True))
    kind = draw(st.sampled_from(["cut", "flip", "replace", "insert"]))
    data = draw(st.binary(min_size=1, max_size=6))
    bit = draw(st.integers(0, 7))

    def damage(whole: bytes) -> bytes:
        at = int(position * len(whole))
        if kind == "cut":
            return whole[:at]
        if kind == "flip":
            return whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        return whole[:at] + data + whole[at + (len(data) if kind == "replace" else 0) :]

    return damage


@given(damages(), st.sampled_from(["checkpoint", "target.kernel/.zarray", "target.kernel/0.0"]))
def test_damage_is_an_error_of_ours_or_harmless(
    damage: Callable[[bytes], bytes], name: str
) -> None:
    with scratch() as directory:
        shutil.copytree(SAVED, directory)
        file = directory / name
        file.write_bytes(damage(file.read_bytes()))
        load_whatever_it_is(directory)


values = st.recursive(
    st.none()
    | st.sampled_from([0, 1, 2, 16, -1, 2**62, 2**63, "float32", "|O", "zarr", "..", "/", "gcs"])
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
PLACES = [
    *[("dtype",), ("driver",), ("kvstore",), ("metadata",), ("path",), ("transform",)],
    *[("kvstore", "driver"), ("kvstore", "path"), ("metadata", "chunks"), ("metadata", "shape")],
    *[("metadata", "compressor"), ("metadata", "compressor", "id")],
    *[("metadata", "dtype"), ("metadata", "compressor", "level")],
]


@given(values, st.sampled_from(PLACES), st.booleans())
def test_any_specification_is_an_error_of_ours_or_harmless(
    value: object, place: tuple[str, ...], has_document: bool
) -> None:
    def change(spec: Any) -> None:
        for key in place[:-1]:
            spec = spec[key]
        spec[place[-1]] = value

    with scratch() as directory:
        shutil.copytree(SAVED, directory)
        rewrite(directory, respec(change))
        if not has_document:
            (directory / "target.kernel" / ".zarray").unlink()
        load_whatever_it_is(directory)


@given(values, st.sampled_from([*ZARRAY, "compressor/id", "compressor/level"]))
def test_any_document_is_an_error_of_ours_or_harmless(value: object, place: str) -> None:
    document = json.loads(json.dumps(ZARRAY))
    *parents, last = place.split("/")
    (document[parents[0]] if parents else document)[last] = value
    with scratch() as directory:
        shutil.copytree(SAVED, directory)
        text = json.dumps(document, default=repr)
        (directory / "target.kernel" / ".zarray").write_text(text)
        load_whatever_it_is(directory)


def every_truncation(data: bytes) -> Iterator[bytes]:
    return (data[:n] for n in range(len(data)))


@pytest.mark.slow
def test_a_msgpack_file_cut_anywhere_is_refused(saved: Path) -> None:
    file = saved / "checkpoint"
    for data in every_truncation(file.read_bytes()):
        file.write_bytes(data)
        with pytest.raises(CheckpointError):
            ocp.load(saved)


BOMBS = {
    "huge map": b"\xdf\xff\xff\xff\xff",
    "huge list": b"\xdd\xff\xff\xff\xff",
    "huge bytes": b"\xc6\xff\xff\xff\xff",
    "deep": b"\x91" * 100_000,
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_msgpack_bomb_is_refused_in_little_memory(tmp_path: Path, kind: str) -> None:
    head = b"\x82\xa7version\x03\xa9optimizer"
    (tmp_path / "checkpoint").write_bytes(head + BOMBS[kind])
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            ocp.load(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()
