"""Recognise files that are not supported, so that an error can say how to convert them."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.storage.store_path import StorePath


class OtherFile(Struct, frozen=True, gc=False):
    """An unsupported file or directory.

    Attributes:
        what: What it is, as a noun.
        advice: What to do, as a sentence.
    """

    what: str
    advice: str


_GIVE = "Give the directory that was saved to."
_UNPACK = "Unpack it, and give the checkpoint in it."

_TORCH = OtherFile(
    "a PyTorch file, which is not read: pickles are never run",
    "Convert it where torch is installed: `safetensors.torch.save_file(torch.load(file, "
    "weights_only=True), 'model.safetensors')`; safetensors are read.",
)
_TORCH_DIRECTORY = OtherFile(
    "a distributed checkpoint of PyTorch, which is not read",
    "Make one file of it with `python -m torch.distributed.checkpoint.format_utils dcp_to_torch`, "
    "and write that as safetensors with `safetensors.torch.save_file`.",
)
_PICKLE = OtherFile(
    "a pickle, which is not read: pickles are never run",
    "If you trust it: `orbit_ckpt.save(path, pickle.load(open(file, 'rb')))`.",
)
_NPZ = OtherFile(
    "an archive of NumPy arrays, which is not read",
    "Save what is in it: `orbit_ckpt.save(path, dict(numpy.load(file)))`.",
)
_NPY = OtherFile(
    "a NumPy array, which is not read", "Save it: `orbit_ckpt.save(path, numpy.load(file))`."
)
_HDF5 = OtherFile(
    "an HDF5 file (Keras, h5py), which is not read",
    "Read its datasets with h5py, or load the model in Keras, and `orbit_ckpt.save` the arrays.",
)
_KERAS = OtherFile(
    "a Keras model, which is not read",
    "Load it in Keras and save its weights: `orbit_ckpt.save(path, model.get_weights())`.",
)
_GGUF = OtherFile(
    "a GGUF file, which is not read",
    "Use the safetensors of the model that it was made from; its own weights are quantized.",
)
_ONNX = OtherFile(
    "an ONNX model, which is not read",
    "Save its weights: `orbit_ckpt.save(path, {t.name: onnx.numpy_helper.to_array(t) for t in "
    "onnx.load(file).graph.initializer})`.",
)
_SAVED_MODEL = OtherFile(
    "a SavedModel of TensorFlow, which is not read",
    "Give the prefix of its variables, `variables/variables`.",
)
_LFS = OtherFile(
    "a pointer of Git LFS; the file that it stands for was not downloaded", "Run `git lfs pull`."
)
_TEXT = OtherFile("a text file", _GIVE)
_EMPTY = OtherFile("an empty file", _GIVE)
_EMPTY_DIRECTORY = OtherFile("an empty directory", _GIVE)

_SUFFIXES = {
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), _TORCH),
    **dict.fromkeys((".pkl", ".pickle"), _PICKLE),
    **dict.fromkeys((".h5", ".hdf5"), _HDF5),
    ".npz": _NPZ,
    ".npy": _NPY,
    ".keras": _KERAS,
    ".gguf": _GGUF,
    ".onnx": _ONNX,
}
_SHARED_SUFFIXES = (".bin", ".ckpt")
"""Suffixes that several kinds of files share; only the content decides."""

_BEGINNINGS = (
    (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19", _TORCH),  # before PyTorch 1.6
    *((bytes((0x80, protocol)), _PICKLE) for protocol in range(2, 6)),
    (b"\x93NUMPY", _NPY),
    (b"\x89HDF\r\n\x1a\n", _HDF5),
    (b"GGUF", _GGUF),
    (b"version https://git-lfs.github.com/spec/", _LFS),
    (b"\x1f\x8b", OtherFile("a gzip archive", _UNPACK)),
    (b"\x28\xb5\x2f\xfd", OtherFile("a file compressed by Zstandard", _UNPACK)),
)
_ZIP = b"PK\x03\x04"
_ZIP_NAME_LENGTH = slice(26, 28)
_ZIP_NAME = 30
_TAR_SIGN = slice(257, 262)
_HEAD_BYTES = 512
_MAX_CHOICES = 1000


def recognize(path: Path) -> OtherFile | None:
    """Return the kind of file at a path, None if it is not recognized.

    Examines names and the first bytes; in an object store only the name. None too if it cannot be
    read, which the next reader reports.
    """
    try:
        return _recognize(path)
    except OSError:
        return None


def _recognize(path: Path) -> OtherFile | None:
    if isinstance(path, StorePath):
        return _SUFFIXES.get(path.suffix.lower())
    if path.is_dir():
        return _in_directory(path)
    return _by_content(path) if path.is_file() else None


def _by_content(path: Path) -> OtherFile | None:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        return _EMPTY
    if head.startswith(_ZIP):
        return _zip_archive(path, head)
    named = _SUFFIXES.get(path.suffix.lower())
    found = next((other for sign, other in _BEGINNINGS if head.startswith(sign)), None)
    if head[_TAR_SIGN] == b"ustar":
        found = OtherFile("a tar archive", _UNPACK)
    elif found is _PICKLE and named is _TORCH:  # before PyTorch 1.6
        found = _TORCH
    elif found is None and path.suffix.lower() not in _SHARED_SUFFIXES:
        found = named
    if found is None and _is_text(head) and not _may_be_document(path):
        return _TEXT
    return found


def _in_directory(path: Path) -> OtherFile | None:
    names = sorted(p.name for p in _first_entries(path))
    if not names:
        return _EMPTY_DIRECTORY
    if "saved_model.pb" in names:
        return _SAVED_MODEL
    if any(name.endswith(".distcp") for name in names):
        return _TORCH_DIRECTORY
    for name in names:
        file = path / name
        if file.suffix.lower() in _SUFFIXES and file.is_file():
            found = _recognize(file)
            return found and OtherFile(f"a directory with {name}, {found.what}", found.advice)
    return None


def _first_entries(path: Path) -> Iterator[Path]:
    for _, entry in zip(range(_MAX_CHOICES), path.iterdir(), strict=False):
        yield entry


def _zip_archive(path: Path, head: bytes) -> OtherFile:
    """Identify a zip archive by the name of its first entry, or else by its own."""
    length = int.from_bytes(head[_ZIP_NAME_LENGTH], "little")
    first = head[_ZIP_NAME : _ZIP_NAME + length].decode(errors="replace")
    if first.endswith(".npy"):
        return _NPZ
    if first.endswith(("/data.pkl", "/version", "/byteorder", "/.format_version")):
        return _TORCH
    return _SUFFIXES.get(path.suffix.lower()) or OtherFile("a zip archive", _UNPACK)


def _is_text(head: bytes) -> bool:
    try:  # a truncated end is not an error
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\n\r\t\f" for character in text)


def _may_be_document(path: Path) -> bool:
    """Return whether a text file has a name like documents of checkpoints."""
    return path.suffix == ".json" or path.name == "checkpoint"
