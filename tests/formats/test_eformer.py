"""Checkpoints of eFormer: stored samples, made ones, damaged ones, and malicious ones."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import orbit_ckpt as ocp
from orbit_ckpt.checkpoint_utils import find_latest_checkpoint
from orbit_ckpt.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    FormatError,
    TreeMismatchError,
    UnsupportedLeafError,
)
from tests.formats.zarr_samples import (
    SAMPLES,
    check_arrays,
    mark,
    named_leaves,
    write_array,
    write_json,
)
from tests.support import make_mesh, scratch

RUNS = SAMPLES / "eformer"
EXPECTED = json.loads((RUNS / "expected.json").read_text())
CHECKPOINTS = [name for name in EXPECTED if name.startswith("run-")]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_samples_have_the_values_that_were_saved(name: str) -> None:
    leaves = named_leaves(ocp.load(RUNS / name))
    values = {
        f"{prefix}/{path}": value
        for prefix, found in EXPECTED[name].get("nonarray_leaves", {}).items()
        for path, value in found.items()
    }
    for path, value in values.items():
        found = leaves.pop(path)
        assert (type(found), found) == (type(value), value)
    check_arrays(leaves, EXPECTED[name]["arrays"])


def test_metadata_has_what_was_saved_with_it_and_the_true_step() -> None:
    found = ocp.metadata(RUNS / "run-10_unstructured")
    assert found.custom_metadata == {
        "step": 10,
        "is_temporary": False,
        "loss": 0.5,
        "timestamp": "2026-11-20T17:19:52.248754",
    }
    assert found["dense"]["bias"].dtype == jnp.bfloat16
    assert found["dense"]["kernel"].storage.compression == "zstd"
    custom: Any = ocp.metadata(RUNS / "run-20_structured").custom_metadata
    assert custom["extras"] == {"model": {"loss": 0.25, "step": 20}, "tx": {"step": 20}}
    custom = ocp.metadata(RUNS / "run-20_structured" / "model").custom_metadata
    assert (custom["loss"], custom["step"]) == (0.25, 20)
    custom = ocp.metadata(RUNS / "run-30_save_pytree_temp").custom_metadata
    assert custom["is_temporary"] is True


@pytest.mark.parametrize("name", ["tx", "tx_structure.json"])
def test_a_prefix_is_an_item(name: str) -> None:
    whole = ocp.load(RUNS / "run-20_structured")
    item = ocp.load(RUNS / "run-20_structured" / name)
    assert jax.tree.structure(item) == jax.tree.structure(whole["tx"])
    assert np.array_equal(item["opt"]["mu"]["a"], whole["tx"]["opt"]["mu"]["a"])
    assert (item["tup"][1], item["none"]) == (2.5, None)


def test_a_part_of_a_tree_or_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(CheckpointNotFoundError, match="whose trees are: model, tx"):
        ocp.load(RUNS / "run-20_structured" / "tx" / "opt")
    with pytest.raises(CheckpointNotFoundError, match=r"next to it:.*model, model_structure"):
        ocp.load(RUNS / "run-20_structured" / "zzz")


def test_lists_are_told_from_dicts_where_a_structure_was_recorded() -> None:
    assert type(ocp.load(RUNS / "run-20_structured" / "model")["layers"]) is list
    assert sorted(ocp.load(RUNS / "run-10_unstructured")["layers"]) == ["0", "1", "2"]


class Adam(NamedTuple):
    count: Any
    mu: Any
    nu: Any


def test_a_target_brings_back_tuples_and_namedtuples() -> None:
    moment = {"a": np.zeros(2, np.float32)}
    like = {"opt": Adam(np.int32(0), moment, moment), "tup": (np.zeros(2, np.float32), 0.0)}
    found = ocp.load(RUNS / "run-20_structured" / "tx", like, unexpected="ignore")
    assert type(found["opt"]) is Adam
    assert type(found["tup"]) is tuple
    assert found["tup"][1] == 2.5
    target = {"dense": {"kernel": np.zeros((4, 3), np.float32)}}
    with pytest.raises(TreeMismatchError, match=r"kernel.*4, 3"):
        ocp.load(RUNS / "run-20_structured" / "model", target, unexpected="ignore")


def test_parts_casts_shardings_and_lazy_arrays_work_as_for_own_checkpoints(tmp_path: Path) -> None:
    sharding = jax.NamedSharding(make_mesh(x=2), jax.P(None, "x"))
    found = ocp.load(
        RUNS / "run-20_structured",
        only="model/dense/kernel",
        cast={"**": jnp.float16},
        sharding={"**": sharding},
    )
    kernel = found["model"]["dense"]["kernel"]
    assert (kernel.dtype, kernel.sharding) == (jnp.float16, sharding)
    lazy = ocp.load(RUNS / "run-20_structured", lazy=True)
    ocp.save(tmp_path / "copy", lazy)
    assert not ocp.diff(RUNS / "run-20_structured", tmp_path / "copy", values=True)


def test_the_latest_checkpoint_of_a_run_is_the_one_written_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_latest_checkpoint(tmp_path / "none") is None
    assert find_latest_checkpoint(tmp_path) is None
    mark(tmp_path / "run-5", 5, "2026-01-02T00:00:00")
    mark(tmp_path / "run-3", 3, "2026-01-03T00:00:00", is_temporary=True)
    mark(tmp_path / "run-2", 2, "2026-01-03T00:00:00")
    (tmp_path / "run-9").mkdir()
    assert find_latest_checkpoint(tmp_path) == tmp_path / "run-3"
    assert find_latest_checkpoint(str(tmp_path / "run-5")) == tmp_path / "run-5"
    (tmp_path / "run-9" / "metadata.json").write_text('{"step": 9, "timest')
    assert find_latest_checkpoint(tmp_path) == tmp_path / "run-3"
    assert "run-9" in caplog.text


def test_a_run_of_several_checkpoints_is_refused_with_the_latest() -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"several .*run-20.*run-30\S* is the latest"):
        ocp.load(RUNS)


def test_files_of_that_name_of_others_are_no_checkpoints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_file({"w": np.ones(3)}, tmp_path / "model.safetensors")
    mark(tmp_path / "notes", 1, "2026-01-02T00:00:00")
    (tmp_path / "logs").mkdir()
    write_json(tmp_path / "logs" / "metadata.json", {"author": "me"})
    assert list(ocp.load(tmp_path)) == ["w"]
    assert not caplog.records


class Malice:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.file), "w"))


def copy_run(tmp_path: Path, name: str = "run-20_structured") -> Path:
    return Path(shutil.copytree(RUNS / name, tmp_path / "run"))


def edit(file: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(file.read_text())
    change(document)
    write_json(file, document)


def test_pickles_are_never_run(tmp_path: Path) -> None:
    run, trap = copy_run(tmp_path), tmp_path / "executed"
    payload = pickle.dumps(Malice(trap))
    text = base64.b64encode(payload).decode()
    edit(run / "tx_structure.json", lambda d: d["nonarray_payload"].update({"6": text}))
    edit(run / "tx_structure.json", lambda d: d.update(treedef_b64=text))
    ocp.metadata(run)
    tree = ocp.load(run)
    assert tree["tx"]["name"].data == payload
    assert tree["tx"]["step"] == 11
    with pytest.raises(UnsupportedLeafError, match=r"tx/name.*PickledValue"):
        ocp.save(tmp_path / "copy", tree)
    ocp.load(run, skip="tx/name")
    assert not trap.exists()
    pickle.loads(tree["tx"]["name"].data).close()  # noqa: S301 - the trap works
    assert trap.exists()


def test_numbers_texts_and_bytes_in_pickles_of_every_protocol_are_values(tmp_path: Path) -> None:
    run = copy_run(tmp_path)
    values = (1, -3, 2**70, 2.5, float("inf"), "naïve", True, False, b"\x00\xff" * 200, "x" * 300)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for value in values:
            if protocol < 3 and isinstance(value, bytes | bool):
                continue  # these are calls there
            text = base64.b64encode(pickle.dumps(value, protocol)).decode()
            edit(
                run / "tx_structure.json", lambda d, t=text: d["nonarray_payload"].update({"6": t})
            )
            found = ocp.load(run / "tx", only="name")["name"]
            assert (type(found), found) == (type(value), value)


DAMAGE = [
    ("tensorstore_index.json", lambda d: d.update(format="zip"), "index format 'zip'"),
    ("tensorstore_index.json", lambda d: d["prefixes"].update({"../x": []}), "not a name"),
    ("tensorstore_index.json", lambda d: d["prefixes"].pop("tx"), "'tx', of which there is tx_"),
    (
        "tensorstore_index.json",
        lambda d: d["prefixes"]["tx"].append(d["prefixes"]["tx"][0]),
        "listed twice",
    ),
    *(
        (
            "tensorstore_index.json",
            lambda d, p=path: d["prefixes"]["tx"][0].update(path=p),
            "no directory in the checkpoint",
        )
        for path in ("../run-10/count", "/etc", "tx/../../x", "tx//x", "", "tx/a\0", "..\\x", "./x")
    ),
    (
        "tensorstore_index.json",
        lambda d: d["prefixes"]["tx"][0].update(shape=[-1]),
        r"\[-1\] is no shape",
    ),
    ("tensorstore_index.json", lambda d: d["prefixes"]["tx"][0].update(shape=[2**70]), "shape"),
    ("tensorstore_index.json", lambda d: d["prefixes"]["tx"][0].update(dtype="object"), "dtype"),
    ("tensorstore_index.json", lambda d: d["prefixes"]["tx"][0].pop("shape"), "shape"),
    (
        "tensorstore_index.json",
        lambda d: d["prefixes"]["tx"][0].update(shape=[5]),
        r"_index\.json \[5\]",
    ),
    ("tensorstore_index.json", lambda d: d["prefixes"]["tx"][0].update(dtype="int8"), "int8"),
    ("tx_structure.json", lambda d: d.update(prefix="model"), "prefix 'model'"),
    ("tx_structure.json", lambda d: d["arr_mask"].pop(), "15 leaves, 14"),
    ("tx_structure.json", lambda d: d["array_relpaths"].pop(), "11 arrays, 10|tensorstore_index"),
    ("tx_structure.json", lambda d: d["nonarray_payload"].pop("6"), "value of tx.name is missing"),
    ("tx_structure.json", lambda d: d["nonarray_payload"].update({"6": "%"}), "value of tx.name"),
    ("tx_structure.json", lambda d: d["nonarray_payload"].update({"6": ""}), "not a pickle"),
    ("tx_structure.json", lambda d: d["leaf_keys_full"].reverse(), "stored as tx/"),
    ("metadata.json", lambda d: d.update(timestamp="yesterday"), "timestamp"),
    ("checkpoint_metadata.json", lambda d: d.update(custom_metadata=3), "custom_metadata"),
    ("tx/count/.zarray", lambda d: d.update(shape=[3], chunks=[3]), r"has shape \[3\]"),
    ("tx/count/.zarray", lambda d: d.update(dtype="<f4"), "dtype float32"),
]


@pytest.mark.parametrize(("name", "change", "message"), DAMAGE, ids=range(len(DAMAGE)))
def test_damage_is_refused_with_the_place(
    tmp_path: Path, name: str, change: Callable[[Any], object], message: str
) -> None:
    run = copy_run(tmp_path)
    edit(run / name, change)
    with pytest.raises(FormatError, match=message) as raised:
        ocp.load(run)
    assert name.rpartition("/")[2] in str(raised.value)


@pytest.mark.parametrize("name", ["tensorstore_index.json", "tx_structure.json", "metadata.json"])
def test_a_document_that_is_a_pipe_or_beyond_all_reason_is_refused(
    tmp_path: Path, name: str
) -> None:
    root = Path(shutil.copytree(RUNS / "run-20_structured", tmp_path / "run-20"))
    document = root / name
    os.truncate(document, 200 << 20)
    with pytest.raises(FormatError, match=rf"{name} has more than \d+ bytes"):
        ocp.load(root)
    document.unlink()
    os.mkfifo(document)
    if name == "tensorstore_index.json":
        ocp.load(root)  # without an index it is as one of Levanter
        return
    with pytest.raises(FormatError, match=f"{name} is no regular file"):
        ocp.load(root)


@pytest.mark.parametrize("name", ["tx/count/.zarray", "tx/opt/mu/a/0"])
def test_missing_files_of_an_array_are_refused(tmp_path: Path, name: str) -> None:
    run = copy_run(tmp_path)
    (run / name).unlink()
    with pytest.raises(CorruptionError, match="missing"):
        ocp.load(run)


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        ([2**25, 4], CorruptionError, r"kernel/\d+\.0' is missing"),
        ([2**50, 4], CheckpointError, "Cannot allocate|kernel"),
        ([2**62, 2**62], FormatError, "is no shape"),
    ],
)
def test_sizes_beyond_all_memory_are_refused(
    tmp_path: Path, shape: list[int], error: type[Exception], message: str
) -> None:
    run = copy_run(tmp_path)
    edit(run / "tensorstore_index.json", lambda d: d["prefixes"]["model"][2].update(shape=shape))
    edit(run / "model/dense/kernel/.zarray", lambda d: d.update(shape=shape))
    with pytest.raises(error, match=message):
        ocp.load(run / "model")


def test_an_index_of_the_first_version_and_trees_with_and_without_prefix(tmp_path: Path) -> None:
    value = np.arange(6.0).reshape(2, 3)
    entry = write_array(tmp_path / "a" / "b", value)
    index: dict[str, Any] = {"arrays": [{"path": "a/b", **entry}]}
    write_json(tmp_path / "tensorstore_index.json", index)
    assert ocp.load(tmp_path)["a"]["b"].tolist() == value.tolist()
    assert ocp.metadata(tmp_path).custom_metadata == {}
    entry = write_array(tmp_path / "p" / "q" / "w", value)
    index["prefixes"] = {"p.q": [{"path": "p/q/w", **entry}]}
    write_json(tmp_path / "tensorstore_index.json", index)
    assert sorted(ocp.load(tmp_path)) == ["a", "p.q"]
    assert ocp.load(tmp_path / "p" / "q")["w"].tolist() == value.tolist()
    index["prefixes"] = {"a": [{"path": "a/b", **write_array(tmp_path / "a" / "b2", value)}]}
    write_json(tmp_path / "tensorstore_index.json", index)
    with pytest.raises(FormatError, match=r"two leaves are stored as a/b"):
        ocp.load(tmp_path)


def test_an_index_that_is_changed_after_lazy_arrays_were_opened_is_an_error(tmp_path: Path) -> None:
    run = copy_run(tmp_path, "run-10_unstructured")
    lazy = ocp.load(run, lazy=True)
    edit(run / "tensorstore_index.json", lambda d: d["arrays"].pop())
    with pytest.raises(CheckpointError, match=r"replaced|changed"):
        lazy["u8"].get()


DOCUMENTS = ["tensorstore_index.json", "tx_structure.json", "metadata.json", "tx/count/.zarray"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return a document's name, and its text with some bytes or one value changed."""
    name = draw(st.sampled_from(DOCUMENTS))
    data = (RUNS / "run-20_structured" / name).read_bytes()
    if draw(st.booleans()):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 40)))
        return name, data[:start] + draw(st.binary(max_size=8)) + data[end:]
    document = json.loads(data)
    node: Any = document
    while True:
        key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 3)) == 0:
            node[key] = draw(JSON)
            return name, json.dumps(document).encode()
        node = inner


@given(damaged())
def test_damaged_documents_are_refused_or_make_no_difference_elsewhere(
    damage: tuple[str, bytes],
) -> None:
    name, data = damage
    with scratch() as path:
        shutil.copytree(RUNS / "run-20_structured", path)
        (path / name).write_bytes(data)
        with contextlib.suppress(CheckpointError):
            ocp.load(path)
        if name not in DOCUMENTS[:1]:
            with contextlib.suppress(FormatError):  # of metadata.json
                assert ocp.load(path / "model")["count"] == 5


def test_its_safetensors_are_read_whole_and_in_shards(tmp_path: Path) -> None:
    single = ocp.load(RUNS / "safetensors_single")
    check_arrays(single, EXPECTED["safetensors_single"]["tensors"])
    shards = {name: f"m-0000{i + 1}-of-00002.safetensors" for i, name in enumerate(sorted(single))}
    for name, file in shards.items():
        save_file({name: single[name]}, tmp_path / file)
    metadata = {"custom_metadata": {"note": "hi"}, "framework_version": None}
    index = {"metadata": metadata, "weight_map": shards}
    write_json(tmp_path / "m.safetensors.index.json", index)
    check_arrays(ocp.load(tmp_path), EXPECTED["safetensors_single"]["tensors"])
    assert ocp.metadata(tmp_path).custom_metadata == metadata


WRITE = """
import sys
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import Mesh
from eformer.serialization import AsyncCheckpointManager

root = sys.argv[1]
mesh = Mesh(np.array(jax.devices()[:1]), ("dp",))
params = {"dense": {"kernel": jnp.arange(12.0).reshape(3, 4), "bias": jnp.ones(4, jnp.bfloat16)},
          "layers": [{"w": jnp.full((2,), i, jnp.float16)} for i in range(11)]}
state = {"opt": optax.adam(1e-3).init(params), "step": 7, "name": "adam", "lr": 0.5, "no": None}
manager = AsyncCheckpointManager()
manager.save_pytree(params, root + "/structured", prefix="model", mesh=mesh)
manager.save_pytree(state, root + "/structured", prefix="tx", mesh=mesh, extras={"loss": 0.25})
tensors = {"a.w": jnp.ones((2, 3)), "b": jnp.arange(4, dtype=jnp.bfloat16)}
plain = AsyncCheckpointManager(use_tensorstore=False)
plain.save_tree(tensors, root + "/m.safetensors", mesh=mesh, metadata={"note": "hi"})
"""


def eformer_python() -> str | None:
    """Return an interpreter that has eFormer: this one, or one that the environment names."""
    if importlib.util.find_spec("eformer"):
        return sys.executable
    return os.environ.get("EFORMER_PYTHON")


@pytest.mark.slow
@pytest.mark.skipif(eformer_python() is None, reason="eformer is not installed")
def test_what_eformer_writes_is_read(tmp_path: Path) -> None:
    python = eformer_python()
    assert python is not None
    subprocess.run([python, "-W", "ignore", "-c", WRITE, str(tmp_path)], check=True)
    found = ocp.load(tmp_path / "structured")
    assert found["model"]["dense"]["kernel"].tolist() == np.arange(12).reshape(3, 4).tolist()
    assert [layer["w"].tolist() for layer in found["model"]["layers"]] == [
        [i] * 2 for i in range(11)
    ]
    tx = found["tx"]
    assert (tx["step"], tx["name"], tx["lr"], tx["no"]) == (7, "adam", 0.5, None)
    assert tx["opt"][0]["mu"]["dense"]["bias"].dtype == jnp.bfloat16
    assert ocp.metadata(tmp_path / "structured" / "tx").custom_metadata == {"loss": 0.25}
    assert sorted(ocp.load(tmp_path / "m.safetensors")) == ["a.w", "b"]


@pytest.mark.parametrize("name", ["metadata.json", "checkpoint_metadata.json", "tx_structure.json"])
def test_a_document_of_another_step_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    mine = Path(shutil.copytree(RUNS / "run-20_structured", tmp_path / "run-20"))
    file = mine / name
    assert ocp.verify(mine).is_intact
    ocp.load(mine)
    assert not caplog.records
    file.write_text(re.sub(r'"step": 20', '"step": 40', file.read_text()))
    (damage,) = ocp.verify(mine).damage
    assert name in damage.what
    assert "step 40" in damage.what
    caplog.clear()
    ocp.load(mine)
    assert "step 40" in caplog.text


def test_verify_names_the_documents_that_it_can_only_parse() -> None:
    def unbound(name: str) -> list[str]:
        unchecked = ocp.verify(RUNS / name).unchecked
        return [one.what for one in unchecked if "nothing binds" in one.what]

    (what,) = unbound("run-20_structured")
    assert "metadata.json, checkpoint_metadata.json, model_structure.json" in what
    assert not unbound("validated")
