"""Read T5X's checkpoints, versions 2 and 3.

A directory `checkpoint_<step>` has a msgpack file `checkpoint` with the tree: small leaves inline,
and TensorStore specs for the other leaves, which are zarr arrays in the same directory.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from typing_extensions import override

from orbit_ckpt._src.errors import (
    CheckpointNotFoundError,
    FormatError,
    IncompleteCheckpointError,
    ProcessCountError,
    VersionError,
)
from orbit_ckpt._src.formats.base import (
    DistributedWriter,
    ForeignStep,
    Format,
    StepRecognizer,
    StoreWriter,
    WritableFormat,
)
from orbit_ckpt._src.formats.flax_msgpack.scan import scan_file
from orbit_ckpt._src.formats.flax_msgpack.tree import LinkedNode, stored_tree
from orbit_ckpt._src.formats.stored_tree import StoredTree
from orbit_ckpt._src.formats.t5x.spec import VERSION, SpecArray, Uint16, is_spec, parse_spec
from orbit_ckpt._src.guards import is_json_object, is_list
from orbit_ckpt._src.runtime.checks import as_flag, check_int, show
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.inner_path import inner_file
from orbit_ckpt._src.storage.layout import AGGREGATE, PINNED
from orbit_ckpt._src.storage.path import (
    PathLike,
    describe_directory,
    resolve_path,
    storage_errors,
)
from orbit_ckpt._src.storage.store_path import map_paths, read_extent

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.writing import WriteRequest

TF_STATE = b"model_checkpoint_path"
"""First bytes of TensorFlow's text file `checkpoint`."""

_OLDEST_VERSION = 2
_STEP = re.compile(r"checkpoint_([0-9]+)")
_TEMPORARY = re.compile(r"checkpoint_\d+\.tmp-\d+")
_DATASET = re.compile(r"train_ds-\d{3,}-of-(\d{3,})\..+")
_BODY, _VERSION = "optimizer", "version"
_KEY_BYTES = 64


class T5XFormat(Format, StepRecognizer, WritableFormat, StoreWriter, DistributedWriter):
    """Reads and writes T5X's checkpoints; see `Format`.

    Args:
        step: The step of a run to read, None for the latest.
        uint16: How to read arrays of uint16. Before version 3, T5X wrote bfloat16 arrays as uint16;
            `"as_bfloat16"` converts them back. T5X itself refuses them, as `"error"` does.
        allow_legacy: Whether to read versions 0 and 1, which T5X refuses, without a conversion.
    """

    name = "T5X"
    extra = None
    writes_as = "t5x"
    uses_executor = True
    writes_to_stores = True

    def __init__(
        self, *, step: int | None = None, uint16: Uint16 = "error", allow_legacy: bool = False
    ) -> None:
        check_int("T5XFormat: step", step, least=0, optional=True)
        if uint16 not in get_args(Uint16):
            choices = ", ".join(map(repr, get_args(Uint16)))
            raise ValueError(f"T5XFormat: uint16 is {show(uint16)}; give one of {choices}.")
        self._step = step
        self._uint16: Uint16 = uint16
        self._allow_legacy = as_flag("T5XFormat: allow_legacy", allow_legacy)

    @override
    def sniff(self, path: Path) -> str | None:
        if not path.is_dir():
            return _lacks(path)
        files = [path / AGGREGATE]
        if not files[0].is_file():
            names = [entry.name for entry in path.iterdir()]
            steps = [entry.name for _, entry in sorted(_directories(path).items())]
            files = [
                path / name / AGGREGATE for name in (*steps[::-1], *filter(_is_temporary, names))
            ]
        files = [file for file in files if file.is_file()]
        if not files:
            return f"no file {AGGREGATE} in it, and no directory checkpoint_<step> with one"
        return None if _is_temporary(files[0].parent.name) else _lacks(files[0])

    @override
    def open(self, path: Path) -> StoredTree:
        file = find_checkpoint(path, self._step)
        if _is_temporary(file.parent.name):
            raise IncompleteCheckpointError(
                f"Found incomplete checkpoint at {file.parent}: the save of T5X that wrote it did "
                "not finish. Restore an earlier one; this directory can be deleted."
            )
        if file != resolve_path(path):
            inner_file(file.parent, file.name)
        if read_extent(str(file), 0, len(TF_STATE)) == TF_STATE:
            raise VersionError(
                "Attempting to restore a TensorFlow checkpoint as a native T5X checkpoint. "
                f"Load it as one of TensorFlow. Path: {file}"
            )
        body = self._body(scan_file(file), file)
        return stored_tree(self._arrays(body, file, ()), path, file)

    @override
    def step_at(self, path: Path) -> ForeignStep | None:
        match, file = _STEP.fullmatch(path.name), path / AGGREGATE
        if match is None or not file.is_file():
            return None
        if _lacks(file) is not None:
            return None
        pinned = (path / PINNED).exists()
        is_local = directory_of(path).has_local_files  # no store reports a time
        time = file.stat().st_mtime if is_local else None
        return ForeignStep(int(match[1]), path, time, is_pinned=pinned)

    def _body(self, root: object, file: Path) -> object:
        """Return the state; raise an error if its version cannot be read."""
        fields = root if is_json_object(root) else None
        version = fields.get(_VERSION, 0) if fields is not None else 0
        if fields is None or type(version) is not int:
            raise FormatError(f"{file} is not of T5X: it is no dict with a version")
        if version > VERSION:
            raise VersionError(
                f"{file}: version {version} of T5X's format; this version of orbit_ckpt reads up "
                f"to {VERSION}. Install a newer one."
            )
        if version < _OLDEST_VERSION and not self._allow_legacy:
            raise VersionError(
                "Checkpoint versions earlier than 2 are not supported. Got version: "
                f"{version} ({file}). T5XFormat(allow_legacy=True), on the "
                "command line --reader t5x:allow_legacy=true, reads it as it is."
            )
        if version == 0:
            return fields
        if not isinstance(fields.get(_BODY), dict):
            raise FormatError(f"{file} is not of T5X, or is damaged: it has no {_BODY!r}")
        return fields[_BODY]

    def _arrays(self, node: object, file: Path, keys: tuple[str, ...]) -> object:
        """Replace the specs in a tree by arrays."""
        if is_list(node):
            nodes = enumerate(node)
            return [self._arrays(value, file, (*keys, str(i))) for i, value in nodes]
        if not is_json_object(node):
            return node
        if not is_spec(node):
            return {key: self._arrays(node[key], file, (*keys, str(key))) for key in node}
        where = f"{file}: {'/'.join(keys)}"
        try:
            spec = parse_spec(node, file.parent)
        except (ValueError, TypeError) as error:
            raise FormatError(f"{where}: {error}") from error
        if self._uint16 == "error" and spec.dtype is not None and spec.dtype.name == "uint16":
            shown = {
                "driver": "zarr",
                "dtype": "uint16",
                "kvstore": {"driver": "file", "path": f"{spec.directory}/"},
                "metadata": {"shape": list(spec.shape or ())},
            }
            raise VersionError(
                f"{where}: Found unsupported uint16 type in Tensorstore spec: {shown}. Please use "
                "t5x/google/scripts/convert_uint16_checkpoint.py to update saved types to "
                "bfloat16. T5XFormat(uint16='as_bfloat16'), on the command line --reader "
                "t5x:uint16=as_bfloat16, reads it as bfloat16."
            )
        return LinkedNode(SpecArray(spec, "/".join(keys), self._uint16))

    @override
    def write(self, request: WriteRequest) -> None:
        from orbit_ckpt._src.formats.t5x.write import write  # noqa: PLC0415 - imports JAX

        write(request)


FORMAT = T5XFormat()


def checkpoint_directory(directory: PathLike, step: int) -> Path:
    """Return the directory of a run's step."""
    return resolve_path(directory) / f"checkpoint_{step}"


def all_steps(directory: PathLike) -> list[int]:
    """Return the finished steps of a run, ascending.

    A directory that does not exist has none; a job starts without one.

    Raises:
        StorageError: The directory cannot be read.
    """
    return sorted(_directories(directory))


def _directories(run: PathLike) -> dict[int, Path]:
    """Return the directories of the steps that T5X finished."""
    root = resolve_path(run)
    found = {entry: match for entry in _entries(root) if (match := _STEP.fullmatch(entry.name))}
    finished = map_paths(lambda entry: (entry / AGGREGATE).is_file(), found, root=root)
    pairs = zip(found, finished, strict=True)
    return {int(found[entry][1]): entry for entry, is_finished in pairs if is_finished}


def _entries(directory: Path) -> list[Path]:
    """Return the entries of a directory; none if it does not exist or is a file."""
    with storage_errors(directory, "listing", "Check that it may be read."):
        try:
            return list(directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []


def latest_step(directory: PathLike) -> int | None:
    """Return the last step of a run, None if it has none or does not exist."""
    steps = all_steps(directory)
    return steps[-1] if steps else None


def all_dataset_checkpoint_steps(directory: PathLike) -> list[int]:
    """Return the steps of a run that have the state of a data iterator, ascending.

    A directory that does not exist has none.
    """
    return sorted(
        int(match[1])
        for entry in _entries(resolve_path(directory))
        if (match := _STEP.fullmatch(entry.name))
        if any(_DATASET.fullmatch(file.name) for file in _entries(entry))
    )


def dataset_prefix(directory: PathLike, shard: int, num_shards: int) -> Path:
    """Return the prefix of a data iterator's state in a step, for TensorFlow.

    `tf.train.Checkpoint(ds=iterator).read(str(prefix)).assert_consumed()` restores it.

    Args:
        directory: The directory of the step.
        shard: Index of the iterator.
        num_shards: The current number of iterators.

    Raises:
        CheckpointNotFoundError: The step has no state of this iterator.
        ProcessCountError: The number of iterators differs from that of the save.
    """
    check_int("shard", shard, least=0)
    check_int("num_shards", num_shards, least=1)
    directory = resolve_path(directory)
    name = f"train_ds-{shard:03}-of-{num_shards:03}"
    if (directory / f"{name}.index").is_file():
        return directory / name
    found = [_DATASET.fullmatch(entry.name) for entry in _entries(directory)]
    counts = {int(match[1]) for match in found if match is not None}
    if counts and num_shards not in counts:
        raise ProcessCountError(
            f"{directory} has the states of {counts} data iterators, there are {num_shards} now. "
            "Restore with the same number, or restart the data.",
            saved=min(counts),
            current=num_shards,
        )
    raise CheckpointNotFoundError(
        f"{directory} has no {name}.index, the state of a data iterator: "
        f"{describe_directory(directory)}. Give the directory of a step that "
        "`all_dataset_checkpoint_steps` lists."
    )


def find_checkpoint(path: PathLike, step: int | None = None) -> Path:
    """Return the msgpack file of a checkpoint.

    Args:
        path: The file, the directory of a step, or that of a run.
        step: The step of a run, None for the latest; ignored for a file.

    Raises:
        CheckpointNotFoundError: There is none.
    """
    path = resolve_path(path)
    if path.is_file():
        return path
    if step is not None:
        found = _directories(path) if path.is_dir() else {}
        path = found.get(step, checkpoint_directory(path, step))
    elif path.is_dir() and not (path / AGGREGATE).is_file() and not _STEP.fullmatch(path.name):
        found = _directories(path)
        if not found:
            raise CheckpointNotFoundError(
                f"No checkpoints found in {path}. Give the directory of a run or of a step of T5X."
            )
        path = found[max(found)]
    file = path / AGGREGATE
    if not file.is_file():
        raise CheckpointNotFoundError(f"Path is not a valid T5X checkpoint: {path} has no {file}.")
    return file


def _is_temporary(name: str) -> bool:
    return _TEMPORARY.fullmatch(name) is not None


def _lacks(file: Path) -> str | None:
    """Explain why a file is not one of T5X's, None if it seems to be one."""
    data = read_extent(str(file), 0, _KEY_BYTES)
    key = _first_key(data)
    problem = None
    if data.startswith(TF_STATE):
        problem = "it is of TensorFlow"
    elif key is None:
        problem = "it does not begin as a dict in msgpack"
    elif key == _VERSION or (key == _BODY and file.name == AGGREGATE):
        pass
    elif key != _BODY and file.name != AGGREGATE:
        problem = f"its first key is neither {_VERSION} nor {_BODY}"
    elif not _is_state(file):
        problem = f"it has neither {_VERSION} and {_BODY} nor TensorStore's specifications"
    return problem


def _is_state(file: Path) -> bool:
    try:
        root = scan_file(file)
    except FormatError:
        return False
    has_keys = is_json_object(root) and root.keys() >= {_VERSION, _BODY}
    return has_keys or _has_spec(root)


def _has_spec(node: object) -> bool:
    if is_json_object(node):
        return is_spec(node) or any(map(_has_spec, node.values()))
    return is_list(node) and any(map(_has_spec, node))


def _first_key(data: bytes) -> str | None:
    """Return the first key of a dict in msgpack, None if it is no short string."""
    if not data:
        return None
    sizes = {0xDE: 3, 0xDF: 5}
    start = 1 if 0x80 < data[0] < 0x90 else sizes.get(data[0])
    if start is None or len(data) <= start or not 0xA0 <= data[start] < 0xC0:
        return None
    key = data[start + 1 : start + 1 + (data[start] & 31)]
    return key.decode(errors="replace")
