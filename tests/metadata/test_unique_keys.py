"""A key that a document has twice is refused wherever it would decide on what is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import orbit_ckpt as ocp
from orbit_ckpt.errors import FormatError
from tests.faults.support import Layout
from tests.formats.zarr_samples import SAMPLES

Write = Callable[[Path], object]


def save_as_orbax(**layout: bool) -> Write:
    """Return a function that saves a tree without a manifest."""

    def write(path: Path) -> None:
        Layout(**layout).save(path, {"a": np.arange(4), "b": np.arange(4) + 1, "s": "text"})
        (path / "orbit_manifest.json").unlink()
        (path / "commit_success.txt").write_bytes(b"")

    return write


def copy_of(sample: str) -> Write:
    return lambda path: shutil.copytree(SAMPLES / sample, path)


def write_shards(path: Path) -> None:
    path.mkdir()
    for name in "ab":
        save_file({"w" + name: np.arange(3)}, path / f"{name}.safetensors")
    places = {"wa": "a.safetensors", "wb": "b.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def repeat(file: Path, key: str) -> None:
    """Let an object of a document have a key twice, first with the value null."""
    text = file.read_text()
    place = text.index(json.dumps(key))
    file.write_text(f"{text[:place]}{json.dumps(key)}: null, {text[place:]}")


EFORMER = "eformer/run-20_structured"
DOCUMENTS: list[tuple[Write, str, str]] = [
    (save_as_orbax(), "_METADATA", "('a',)"),
    (save_as_orbax(), "_METADATA", "tree_metadata"),
    (save_as_orbax(), "_strings.json", "s"),
    (save_as_orbax(use_ocdbt=False), "a/zarr.json", "data_type"),
    (save_as_orbax(use_ocdbt=False, use_zarr3=False), "a/.zarray", "dtype"),
    (write_shards, "model.safetensors.index.json", "wa"),
    (copy_of(EFORMER), "tensorstore_index.json", "prefixes"),
    (copy_of(EFORMER), "model_structure.json", "nonarray_payload"),
    (copy_of(EFORMER), "checkpoint_metadata.json", "checksum"),
    (copy_of(EFORMER), "model/count/.zarray", "dtype"),
    (copy_of("levanter/step-7"), "model/scale/.zarray", "dtype"),
]


@pytest.mark.parametrize(
    ("write", "file", "key"), DOCUMENTS, ids=[f"{file}-{key}" for _, file, key in DOCUMENTS]
)
def test_a_repeated_key_is_refused_with_file_and_key(
    tmp_path: Path, write: Write, file: str, key: str
) -> None:
    path = tmp_path / "checkpoint"
    write(path)
    ocp.load(path)
    repeat(path / file, key)
    with pytest.raises(FormatError) as raised:
        ocp.load(path)
    assert Path(file).name in str(raised.value)
    assert "twice" in str(raised.value)
    assert key in str(raised.value)
    assert not ocp.verify(path).is_intact


@pytest.mark.parametrize("key", ["item_handlers", "params"])
def test_a_repeated_item_handler_is_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "checkpoint"
    with ocp.Checkpointer(ocp.CompositeHandler()) as checkpointer:
        params = ocp.args.StandardSave({"a": np.arange(4)})
        checkpointer.save(path, args=ocp.args.Composite(params=params))
        (path / "orbit_manifest.json").unlink()
        repeat(path / "_CHECKPOINT_METADATA", key)
        with pytest.raises(FormatError, match=f"'{key}' twice"):
            checkpointer.restore(path)


def test_values_of_users_may_repeat_keys_as_python_writes_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strange = {1: "a", "1": "b"}
    ocp.save(tmp_path / "tree", {"a": np.arange(4)}, custom_metadata={"x": strange})
    assert ocp.load(tmp_path / "tree")["a"].tolist() == [0, 1, 2, 3]
    assert ocp.metadata(tmp_path / "tree").custom_metadata == {"x": {"1": "b"}}
    with ocp.Checkpointer(ocp.JsonHandler()) as checkpointer:
        checkpointer.save(tmp_path / "json", args=ocp.args.JsonSave(strange))
        assert checkpointer.restore(tmp_path / "json") == {"1": "b"}
    assert "has the key '1' twice" in caplog.text
