"""What is no checkpoint is recognized, and the error says how to bring what it holds."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.formats import base
from orbit_ckpt._src.storage.other_files import recognize
from orbit_ckpt.errors import CheckpointNotFoundError, FormatError

TORCH = ("a PyTorch file", "safetensors.torch.save_file")


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, w=np.ones(2))
    return file.getvalue()


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.ones(2))
    return file.getvalue()


def zipped(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"x")
    return file.getvalue()


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("step_1/_METADATA"))
    return file.getvalue()


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("the pickle was run",))


MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
FILES = {
    "model.pt": (zipped("archive/data.pkl"), *TORCH),
    "model.pth": (zipped("model/.format_version"), *TORCH),
    "pytorch_model.bin": (zipped("pytorch_model/data.pkl"), *TORCH),
    "last.ckpt": (zipped("last/data.pkl"), *TORCH),
    "renamed": (zipped("archive/data.pkl"), *TORCH),
    "old.pt": (MAGIC + pickle.dumps(1001, protocol=2), *TORCH),
    "old": (MAGIC + pickle.dumps(1001, protocol=2), *TORCH),
    "plain.pt": (pickle.dumps(Bomb()), *TORCH),
    "state.pkl": (pickle.dumps(Bomb()), "a pickle", "If you trust it"),
    "state": (pickle.dumps({"a": 1}), "a pickle", "If you trust it"),
    "zero.pkl": (pickle.dumps({"a": 1}, protocol=0), "a pickle", "If you trust it"),
    "w.npz": (npz(), "an archive of NumPy arrays", "dict(numpy.load(file))"),
    "w.npy": (npy(), "a NumPy array", "numpy.load(file)"),
    "w": (npz(), "an archive of NumPy arrays", "dict(numpy.load(file))"),
    "w.h5": (b"\x89HDF\r\n\x1a\n" + b"\0" * 50, "an HDF5 file", "h5py"),
    "m.keras": (zipped("metadata.json"), "a Keras model", "get_weights"),
    "m.gguf": (b"GGUF\3\0\0\0" + b"\0" * 50, "a GGUF file", "safetensors"),
    "m.onnx": (b"\x08\x07\x12\x07pytorch", "an ONNX model", "onnx.load"),
    "x.tar": (tar(), "a tar archive", "Unpack it"),
    "x.tgz": (gzip.compress(tar()), "a gzip archive", "Unpack it"),
    "x.zip": (zipped("step_1/_METADATA"), "a zip archive", "Unpack it"),
    "weights": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
        "a pointer of Git LFS",
        "git lfs pull",
    ),
    "README.md": ("Größe\n".encode() * 200, "a text file", "Give the directory"),
    "nothing": (b"", "an empty file", "Give the directory"),
}


@pytest.fixture(autouse=True)
def _no_registered_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_registered", {})  # tests of plug-ins register theirs


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_others_is_recognized_and_the_error_says_how_to_bring_it(
    tmp_path: Path, name: str
) -> None:
    data, what, advice = FILES[name]
    file = tmp_path / name
    file.write_bytes(data)
    reads: list[Callable[[Path], object]] = [
        *(ocp.load, ocp.metadata, ocp.plan, ocp.detect_format),
        lambda path: ocp.convert(path, tmp_path / "out"),
    ]
    for read in reads:
        with pytest.raises(CheckpointNotFoundError) as caught:
            read(file)
        message = str(caught.value)
        assert f"{file}: it is {what}" in message
        assert advice in message
        assert "Other formats" not in message
        assert "\n" not in message


@pytest.mark.parametrize(
    ("entry", "data", "what"),
    [
        ("pytorch_model.bin", zipped("a/data.pkl"), "with pytorch_model.bin, a PyTorch file"),
        ("arrays.npz", npz(), "with arrays.npz, an archive of NumPy arrays"),
        ("saved_model.pb", b"\x08\x01", "a SavedModel of TensorFlow"),
        ("__0_0.distcp", b"\x80", "a distributed checkpoint of PyTorch"),
    ],
)
def test_a_directory_with_files_of_others_is_recognized(
    tmp_path: Path, entry: str, data: bytes, what: str
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / entry).write_bytes(data)
    with pytest.raises(CheckpointNotFoundError, match=what) as caught:
        ocp.load(tmp_path)
    assert "Other formats" not in str(caught.value)


def test_a_safetensors_file_that_git_lfs_did_not_download_is_told(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(FILES["weights"][0])
    with pytest.raises(FormatError, match="git lfs pull"):
        ocp.load(file)


def test_an_empty_directory_is_answered_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="an empty directory") as caught:
        ocp.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["data.bin", "variables.ckpt", "checkpoint", "model.safetensors.index.json"]
)
def test_files_whose_names_many_programs_use_are_not_taken_for_those_of_one(
    tmp_path: Path, name: str
) -> None:
    data = b"\xff\0\1" if name.endswith((".bin", ".ckpt")) else b"{}"
    (tmp_path / name).write_bytes(data)
    assert recognize(tmp_path / name) is None
