"""Read Flax's msgpack files: `to_bytes`, `msgpack_serialize`, `flax.training.checkpoints`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from orbit_ckpt._src.errors import CheckpointNotFoundError
from orbit_ckpt._src.formats.base import (
    DistributedWriter,
    ForeignStep,
    Format,
    StepRecognizer,
    WholeReader,
    WritableFormat,
)
from orbit_ckpt._src.formats.flax_msgpack.scan import SUFFIX, begins_tree, scan_file
from orbit_ckpt._src.formats.flax_msgpack.tree import stored_tree, whole_tree
from orbit_ckpt._src.formats.stored_tree import StoredTree
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.inner_path import inner_file
from orbit_ckpt._src.storage.store_path import file_names, read_extent
from orbit_ckpt._src.text import shorten_list

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.writing import WriteRequest

_STEP = re.compile(r"checkpoint_(\d+(?:\.\d+)?)")
_KEY_BYTES = 32
_DICTS = (b"\xdc", b"\xdd", b"\xde", b"\xdf")
"""First bytes of long lists and dicts."""


class FlaxFormat(Format, WholeReader, StepRecognizer, WritableFormat, DistributedWriter):
    """Reads and writes Flax's msgpack files; see `Format`."""

    name = "flax msgpack"
    extra = None
    writes_as = "flax"
    uses_executor = True

    @override
    def sniff(self, path: Path) -> str | None:
        if path.is_dir():
            return None if _candidates(path) else f"no checkpoint_<step> and no *{SUFFIX} in it"
        if path.name.endswith(SUFFIX):
            return None
        data = read_extent(str(path), 0, _KEY_BYTES)
        if _STEP.fullmatch(path.name) and (data[:1] in _DICTS or b"\x80" < data[:1] < b"\xa0"):
            return None
        return None if begins_tree(data) else "it does not begin as a dict in msgpack"

    @override
    def open(self, path: Path) -> StoredTree:
        file = _file_at(path)
        return stored_tree(scan_file(file), path, file)

    @override
    def open_whole(self, path: Path) -> StoredTree:
        file = _file_at(path)
        tree = scan_file(file)
        return whole_tree(tree, path, file) or stored_tree(tree, path, file)

    @override
    def step_at(self, path: Path) -> ForeignStep | None:
        # a `checkpoint_<step>` among others is a step
        match = _STEP.fullmatch(path.name)
        if match is None or not path.is_file():
            return None
        return ForeignStep(_step_of(match), path, _time_of(path))

    @override
    def write(self, request: WriteRequest) -> None:
        from orbit_ckpt._src.formats.flax_msgpack.write import write  # noqa: PLC0415 - imports JAX

        write(request)


FORMAT = FlaxFormat()


def _file_at(path: Path) -> Path:
    """Return the msgpack file of a checkpoint.

    Raises:
        CheckpointNotFoundError: The directory has several.
    """
    file = path
    if path.is_dir():
        names = _candidates(path)
        file = inner_file(path, names[-1])
        if len(names) > 1:
            raise CheckpointNotFoundError(
                f"{path} holds several checkpoints of Flax ({shorten_list(names, 8)}); "
                f"give one of them, for example {file}."
            )
    return file


def _candidates(directory: Path) -> Sequence[str]:
    """Return the names of a directory's checkpoint files, the latest step last."""
    names = file_names(directory)
    steps = {name: match for name in names if (match := _STEP.fullmatch(name))}
    return sorted(steps, key=lambda name: _step_of(steps[name])) or [
        name for name in names if name.endswith(SUFFIX)
    ]


def _step_of(match: re.Match[str]) -> float:
    """Return the number of a step: an exact integer, or a float, by which Flax orders steps."""
    whole, _, fraction = match[1].partition(".")
    return float(match[1]) if fraction.strip("0") else int(whole)


def _time_of(file: Path) -> float | None:
    time_ns = directory_of(file).modified_ns()
    return None if time_ns is None else time_ns / 1e9
