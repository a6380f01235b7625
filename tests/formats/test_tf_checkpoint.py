"""Checkpoints of TensorFlow: stored ones of T5, damaged ones, and new ones if it is installed."""

from __future__ import annotations

import contextlib
import random
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt import t5x
from orbit_ckpt._src.formats.tf_checkpoint import index as tf_index
from orbit_ckpt._src.formats.tf_checkpoint.index import decompress
from orbit_ckpt.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    FormatError,
    ProcessCountError,
    TreeMismatchError,
)
from tests.formats.t5x_samples import EXPECTED, SAMPLES, check, named_leaves
from tests.support import make_mesh, scratch

T5 = SAMPLES / "tf_t5_ckpt"
MESH_T5 = SAMPLES / "upstream_mtf_tiny_t5"
KEPT = t5x.TensorFlowFormat(translate=None)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(T5, tmp_path / "t5"))


@pytest.mark.parametrize("name", ["", "checkpoint", "model.ckpt-1000.index"])
def test_variables_of_t5_get_the_names_and_values_of_t5x(name: str) -> None:
    check(ocp.load(T5 / name), EXPECTED["tf_t5_ckpt"]["translated"])


def test_the_prefix_is_found_too_when_the_format_is_given() -> None:
    reader = t5x.TensorFlowFormat()
    check(ocp.load(T5 / "model.ckpt-1000", reader=reader), EXPECTED["tf_t5_ckpt"]["translated"])


def test_variables_are_read_under_their_own_names_when_asked_for() -> None:
    check(ocp.load(T5, reader=KEPT), EXPECTED["tf_t5_ckpt"]["tf_variables"])


def test_a_compressed_index_of_many_blocks_is_read() -> None:
    found = named_leaves(ocp.metadata(MESH_T5, reader=KEPT).tree)
    variables = EXPECTED["upstream_mtf_tiny_t5"]["variables"]
    shapes = {name: [leaf.dtype.name, list(leaf.shape)] for name, leaf in found.items()}
    assert shapes == variables
    renamed = named_leaves(ocp.metadata(MESH_T5).tree)
    assert "target/decoder/layers_1/encoder_decoder_attention/out/kernel" in renamed
    assert "state/param_states/encoder/relpos_bias/rel_embedding/v" in renamed
    assert ocp.load(MESH_T5, only="state/step")["state"]["step"].dtype == np.int32
    with pytest.raises(CorruptionError, match=r"data-00001-of-00002.*the file is missing"):
        ocp.load(MESH_T5, only="target/encoder/**")


def test_targets_shardings_and_lazy_arrays_work_as_for_own_checkpoints(tmp_path: Path) -> None:
    by_row = jax.NamedSharding(make_mesh(x=4), jax.P("x"))
    like: dict[str, Any] = {
        "target": {"token_embedder": {"embedding": jax.ShapeDtypeStruct((8, 4), np.float32)}}
    }
    found = ocp.load(T5, like, unexpected="ignore", sharding=by_row)
    assert found["target"]["token_embedder"]["embedding"].sharding == by_row
    ocp.convert(T5, tmp_path / "checkpoint_1000", to="t5x")
    check(ocp.load(tmp_path / "checkpoint_1000"), EXPECTED["tf_t5_ckpt"]["translated"])
    like["target"]["extra"] = np.zeros(3)
    with pytest.raises(TreeMismatchError, match=r"target/extra"):
        ocp.load(T5, like, unexpected="ignore")


def test_a_variable_without_a_rule_is_an_error_that_names_it() -> None:
    message = EXPECTED["behaviours"]["tf unmapped key"]["message"]
    with pytest.raises(ValueError, match="Unmapped tensor keys exist") as raised:
        t5x.T5_RULES.apply({"foo/bar": 1})
    assert str(raised.value) == message
    with pytest.raises(ValueError, match="neither a state of Adafactor nor a layer of T5"):
        t5x.translate_t5({"shared/embedding_slot_x": np.zeros(1)})


def test_rules_of_ones_own_rename_drop_and_compute() -> None:
    rules = t5x.CheckpointTranslator()

    @rules.add(r"(encoder|decoder)/.*_norm/scale")
    def drop(opts: Any, name: str, value: Any, _tower: str) -> Any:
        assert (opts, name.endswith("scale")) == ({}, True)
        return None, value

    @rules.add(r"global_(step)")
    def step(_opts: Any, _name: str, value: Any, group: str) -> Any:
        return f"train/{group}", value.get() + 1

    @rules.add(r".*")
    def other(_opts: Any, name: str, value: Any) -> Any:
        return f"all/{name.replace('/', '_')}", value

    found = ocp.load(T5, reader=t5x.TensorFlowFormat(translate=rules.apply))
    assert found["train"]["step"] == 1001
    expected = EXPECTED["tf_t5_ckpt"]["tf_variables"]["shared/embedding"]["data"]
    assert found["all"]["shared_embedding"].tolist() == expected
    assert not any("norm" in name for name in found["all"])


def test_position_biases_of_several_layers_stay_apart() -> None:
    name = "encoder/block_{:03}/layer_000/SelfAttention/relative_attention_bias"
    both = t5x.translate_t5({name.format(i): np.full(1, i) for i in (0, 1)})
    assert "target/encoder/layers_1/relpos_bias/rel_embedding" in both
    one = t5x.translate_t5({name.format(0): np.zeros(1)})
    assert "target/encoder/relpos_bias/rel_embedding" in one
    only_decoder = t5x.translate_t5({"transformer/block_003/layer_001/rms_norm/scale": np.ones(1)})
    assert "target/decoder/layers_3/pre_mlp_layer_norm/scale" in only_decoder


def test_what_is_no_number_says_how_to_leave_it_out() -> None:
    index = SAMPLES / "v3_two_hosts_ds" / "checkpoint_7" / "train_ds-000-of-002.index"
    with pytest.raises(FormatError, match="_CHECKPOINTABLE_OBJECT_GRAPH is no array of numbers"):
        ocp.load(index, reader=KEPT)


def test_states_of_data_iterators_are_found_for_as_many_as_there_were() -> None:
    step = SAMPLES / "v3_two_hosts_ds" / "checkpoint_7"
    assert t5x.dataset_prefix(step, 1, 2) == step / "train_ds-001-of-002"
    with pytest.raises(ProcessCountError, match=r"there are 4 now") as raised:
        t5x.dataset_prefix(step, 1, 4)
    assert (raised.value.saved, raised.value.current) == (2, 4)
    with pytest.raises(CheckpointNotFoundError, match="train_ds-000-of-001"):
        t5x.dataset_prefix(SAMPLES / "v3_save_f32" / "checkpoint_42", 0, 1)


def test_the_state_file_leads_nowhere_else(copied: Path) -> None:
    state = copied / "checkpoint"
    state.write_text('model_checkpoint_path: "/elsewhere/run/model.ckpt-1000"\n')
    check(ocp.load(copied), EXPECTED["tf_t5_ckpt"]["translated"])
    state.write_text('model_checkpoint_path: "model.ckpt-7"\n')
    with pytest.raises(CheckpointNotFoundError, match=r"model\.ckpt-7\.index"):
        ocp.load(copied)
    state.unlink()
    check(ocp.load(copied), EXPECTED["tf_t5_ckpt"]["translated"])


def test_damaged_data_is_found_by_its_checksum(copied: Path) -> None:
    file = copied / "model.ckpt-1000.data-00000-of-00001"
    data = bytearray(file.read_bytes())
    data[1010] ^= 4  # of shared/embedding
    file.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"shared/embedding: .* checksum does not match"):
        ocp.load(copied)
    with pytest.raises(CorruptionError, match="shared/embedding"):
        _ = ocp.load(copied, lazy=True)["target"]["token_embedder"]["embedding"][0, 0]
    file.write_bytes(data[:1005])
    with pytest.raises(CorruptionError, match="the file ends"):
        ocp.load(copied)


@given(st.integers(0, 718), st.integers(0, 7), st.sampled_from(["flip", "cut"]))
def test_of_a_damaged_index_nothing_wrong_is_read(position: int, bit: int, kind: str) -> None:
    with scratch() as directory:
        shutil.copytree(T5, directory)
        file = directory / "model.ckpt-1000.index"
        data = bytearray(file.read_bytes())
        data[position] ^= 1 << bit
        file.write_bytes(data if kind == "flip" else data[:position])
        if kind == "cut":
            with pytest.raises(CheckpointError):
                ocp.load(directory)
            return
        with contextlib.suppress(CheckpointError):  # it may be in what nobody reads
            check(ocp.load(directory), EXPECTED["tf_t5_ckpt"]["translated"])


def test_no_rule_is_applied_to_what_another_format_is(tmp_path: Path) -> None:
    (tmp_path / "a.index").write_bytes(bytes(range(64)))
    with pytest.raises(CheckpointNotFoundError, match=r"a\.index is no state file and no index"):
        ocp.load(tmp_path / "a.index")


def varint(number: int) -> bytes:
    head = bytearray()
    while number > 127:
        head.append(number & 127 | 128)
        number >>= 7
    return bytes([*head, number])


def entry(shared: int, rest: bytes, value: bytes) -> bytes:
    return varint(shared) + varint(len(rest)) + varint(len(value)) + rest + value


def table_of(names: Iterable[tuple[int, bytes]]) -> bytes:
    """Return an index of tensors without values.

    Args:
        names: How much every name has of the one before, and what follows that.
    """
    data = bytearray()

    def add(entries: bytes) -> bytes:
        handle = varint(len(data)) + varint(len(entries) + 8)
        block = entries + struct.pack("<IIB", 0, 1, 0)
        data.extend(block + struct.pack("<I", tf_index.mask_checksum(crc32c(block))))
        return handle

    entries = [(0, b"", b"\x08\x01"), *((shared, rest, b"") for shared, rest in names)]
    tensors = add(b"".join(entry(*fields) for fields in entries))
    handles = add(b"") + add(entry(0, b"z", tensors))
    return bytes(data) + handles.ljust(40, b"\0") + tf_index.MAGIC


def literal(data: bytes) -> bytes:
    return struct.pack("<BI", 63 << 2, len(data) - 1) + data


def compressed(data: bytes, pieces: random.Random) -> bytes:
    """Return data in snappy, with copies of all forms wherever something is repeated."""
    result = bytearray()
    position = 0
    while position < len(data):
        size = pieces.randint(1, 20)
        start = data.rfind(data[position : position + size], 0, position)
        size = min(size, len(data) - position)
        offset = position - start
        if start < 0:
            result += literal(data[position : position + size])
        elif 4 <= size <= 11 and offset < 2048 and pieces.random() < 0.5:
            result += bytes([(offset >> 8) << 5 | (size - 4) << 2 | 1, offset & 255])
        elif offset < 65536 and pieces.random() < 0.5:
            result += struct.pack("<BH", (size - 1) << 2 | 2, offset)
        else:
            result += struct.pack("<BI", (size - 1) << 2 | 3, offset)
        position += size
    return varint(len(data)) + bytes(result)


@given(st.lists(st.sampled_from([b"a", b"bc", b"abcabc", b"\0" * 70]), max_size=60), st.randoms())
def test_snappy_gives_back_what_was_compressed(parts: list[bytes], pieces: random.Random) -> None:
    data = b"".join(parts)
    assert decompress(compressed(data, pieces), 1 << 20) == data


@given(st.binary(max_size=60))
@example(b"\xff\xff\xff\xff\x0f")
@example(b"\x05\x01\x00")
@example(b"\x04\xf4\xff\xff")
def test_no_snappy_is_a_value_error_in_bounded_memory(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert len(decompress(data, 1 << 16)) <= 64 * len(data)


def test_names_that_are_long_because_they_share_much_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf_index, "_MAX_BYTES", 1 << 20)
    file = tmp_path / "model.index"

    def write(count: int) -> None:
        rests = (bytes([97 + i // 26, 97 + i % 26]) for i in range(count))
        file.write_bytes(table_of([(0, b"x" * 10_000), *((10_000, rest) for rest in rests)]))

    write(20)
    assert len(tf_index.read_index(file)) == 21
    write(200)
    assert file.stat().st_size < 20_000
    with pytest.raises(FormatError, match="its names and tensors would take more"):
        tf_index.read_index(file)


def write_with_tensorflow(directory: Path, values: dict[str, Any]) -> Path:
    tf: Any = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session() as session:
        variables = [tf.compat.v1.Variable(v, name=name) for name, v in values.items()]
        session.run([v.initializer for v in variables])
        saver = tf.compat.v1.train.Saver(variables)
        return Path(saver.save(session, str(directory / "model.ckpt"), global_step=3))


def test_what_tensorflow_writes_is_read_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    names = ("float32", "float64", "int32", "uint8", "int16", "int8", "complex64", "int64")
    dtypes = (*names, "bool", "bfloat16", "uint16", "complex128", "float16", "uint32", "uint64")
    values = {f"v/{name}": np.arange(6).reshape(2, 3).astype(np.dtype(name)) for name in dtypes}
    values |= {f"many/{i:04}/{'x' * (1 + i % 40)}": np.full(3, i) for i in range(500)}
    prefix = write_with_tensorflow(tmp_path, values)
    found = named_leaves(ocp.load(tmp_path, reader=KEPT))
    assert sorted(found) == sorted(values)
    for name, value in values.items():
        assert (found[name].dtype, found[name].tobytes()) == (value.dtype, value.tobytes())
    assert prefix.name == "model.ckpt-3"
