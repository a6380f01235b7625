"""Read and write the JSON documents of an item's directory."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from orbit_ckpt._src.arrays.recorded_sharding import (
    ShardingMetadata,
    decode_sharding,
    encode_sharding,
)
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.guards import is_json_object
from orbit_ckpt._src.metadata.array_records import (
    RANDOM_KEY_IMPL,
    ArrayRecord,
    decode_arrays,
    encode_arrays,
)
from orbit_ckpt._src.metadata.codec import decode_json, encode_json
from orbit_ckpt._src.metadata.schema import StepDocument, TreeDetails, TreeDocument
from orbit_ckpt._src.metadata.user_json import encode_user_json
from orbit_ckpt._src.metadata.values import StepMetadata, StepStatistics
from orbit_ckpt._src.storage.durable import replace_file, write_file
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.layout import (
    ARRAY_METADATAS,
    SHARDINGS,
    STEP_METADATA,
    STRINGS,
    TREE_DETAILS,
    TREE_METADATA,
)
from orbit_ckpt._src.storage.manifest import FileRecord
from orbit_ckpt._src.storage.store_path import StorePath


class DocumentWriter:
    """Writes the documents of a tree into a directory.

    Attributes:
        records: Records of the written files for the manifest, by name.
    """

    def __init__(self, directory: Path) -> None:
        self.records: dict[str, FileRecord] = {}
        self._directory = directory

    def write_tree(self, tree: bytes, details: TreeDetails) -> None:
        """Write `_METADATA` and, unless empty, the library's own details next to it.

        Args:
            tree: An encoded `TreeDocument`.
            details: The details.
        """
        if details:
            self._write(TREE_DETAILS, encode_json(details))
        self._write(TREE_METADATA, tree)

    def write_arrays(self, process: int, records: Sequence[ArrayRecord]) -> bytes | None:
        """Write the records of JAX arrays; return the document, None without one."""
        if not records:
            return None
        document = encode_arrays(records)
        (self._directory / ARRAY_METADATAS).mkdir(exist_ok=True)
        self._write(arrays_file(process), document)
        return document

    def write_shardings(self, document: bytes | None) -> None:
        """Write the document of `encode_shardings`, if any."""
        if document is not None:
            self._write(SHARDINGS, document)

    def write_strings(self, strings: Mapping[str, str], file: str = STRINGS) -> None:
        """Write the string leaves of a tree by storage name, if any.

        Orbax looks a name up as an unescaped JSON pointer, so that its reader takes a slash in a
        name for a level of nesting. Such strings are written in both forms.
        """
        if not strings:
            return
        document: dict[str, object] = dict(strings)
        for name, text in strings.items():
            *parents, last = name.split("/")
            node = document
            for parent in parents:
                below = node.setdefault(parent, {})
                if not is_json_object(below):
                    break  # a string has this name; only Orbax misses the nested form
                node = below
            else:
                node.setdefault(last, text)
        self._write(file, encode_user_json(document))

    def _write(self, name: str, data: bytes) -> None:
        write_file(self._directory / name, data)
        self.records[name] = FileRecord.of_contents(data)


def encode_shardings(
    names: Sequence[str], shardings: Sequence[ShardingMetadata | None]
) -> bytes | None:
    """Return the document of the shardings of leaves, None if there are none.

    Args:
        names: The storage names of the leaves.
        shardings: The sharding of each, None without one.
    """
    known: dict[int, str] = {}  # by identity: most leaves share one
    document: dict[str, str] = {}
    for name, sharding in zip(names, shardings, strict=True):
        if sharding is not None:
            text = known.get(id(sharding))
            if text is None:
                text = known[id(sharding)] = encode_sharding(sharding)
            document[_encode_name(name)] = text
    return encode_json(document) if document else None


def arrays_file(process: int) -> str:
    """Return the name of the file with one process's records of JAX arrays."""
    return f"{ARRAY_METADATAS}/process_{process}"


def read_tree(directory: CheckedDirectory) -> TreeDocument | None:
    """Return `_METADATA` with the details applied, None if it does not exist.

    Raises:
        FormatError: A document is not understood.
        CorruptionError: A file differs from its checksum.
    """
    data = directory.read_bytes(TREE_METADATA)
    if data is None:
        return None
    return TreeDocument.decode(data, str(directory.path / TREE_METADATA))


def read_details(directory: CheckedDirectory) -> TreeDetails:
    """Return the library's own details of a tree; empty for other writers' checkpoints.

    Raises:
        FormatError: The document is not understood.
        CorruptionError: The file differs from its checksum.
    """
    data = directory.read_bytes(TREE_DETAILS)
    where = str(directory.path / TREE_DETAILS)
    return TreeDetails() if data is None else TreeDetails.decode(data, where)


def read_arrays(directory: CheckedDirectory, *, extra_only: bool = False) -> dict[str, ArrayRecord]:
    """Return the first process's records of JAX arrays, by storage name.

    Args:
        directory: Where the document is.
        extra_only: Whether only typed PRNG keys and what type handlers recorded are needed; most
            documents list none and are then not decoded.

    Raises:
        FormatError: The document is not understood.
        CorruptionError: The file differs from its checksum.
    """
    name = arrays_file(0)
    data = directory.read_bytes(name)
    if data is None or (extra_only and _is_without_extra(data)):
        return {}
    records = decode_arrays(data, str(directory.path / name))
    return {record.name: record for record in records}


def _is_without_extra(data: bytes) -> bool:
    is_whole = data.startswith(b'{"array_metadatas"') and data.endswith(b"]}")
    return is_whole and not any(start in data for start in _EXTRA)


_EXTRA = (RANDOM_KEY_IMPL.encode(), b'"ext_metadata":{', b'"ext_metadata": {')
"""Every document that records more of an array than its shapes has one of these."""


def read_shardings(
    directory: CheckedDirectory,
) -> Callable[[], dict[str, ShardingMetadata]]:
    """Return a function that decodes the recorded shardings by storage name; omits unknown kinds.

    Decoding is deferred because not every restore needs it; the function may raise FormatError.

    Raises:
        CorruptionError: The file differs from its checksum.
    """
    data = directory.read_bytes(SHARDINGS)
    where = str(directory.path / SHARDINGS)
    return lambda: {} if data is None else _decode_shardings(data, where)


def _decode_shardings(data: bytes, where: str) -> dict[str, ShardingMetadata]:
    shardings: dict[str, ShardingMetadata] = {}
    decoded: dict[str, ShardingMetadata | None] = {}  # most leaves share one
    # which decide on the placement of data only
    for key, text in decode_json(data, dict[str, str], where, repeats=True).items():
        try:
            if text not in decoded:
                decoded[text] = decode_sharding(text)
            sharding = decoded[text]
            if sharding is not None:
                shardings[_decode_name(key)] = sharding
        except ValueError as error:
            raise FormatError(f"{where}: {key!r}: {error}") from error
    return shardings


def read_strings(directory: CheckedDirectory, file: str = STRINGS) -> dict[str, object]:
    """Return the contents of a strings file for `find_string`.

    Raises:
        FormatError: The document is not understood.
        CorruptionError: The file differs from its checksum.
    """
    data = directory.read_bytes(file)
    where = str(directory.path / file)
    return {} if data is None else decode_json(data, dict[str, Any], where)


def find_string(strings: Mapping[str, object], name: str) -> str | None:
    """Return the string stored under a name, None if it does not exist."""
    found = strings.get(name)
    if isinstance(found, str):
        return found
    node: object = strings
    for part in name.split("/"):
        node = node.get(part) if is_json_object(node) else None
    return node if isinstance(node, str) else None


def read_step(directory: CheckedDirectory) -> StepDocument:
    """Return `_CHECKPOINT_METADATA`, or an empty document for old writers' checkpoints.

    Raises:
        FormatError: The document is not understood.
        CorruptionError: The file differs from its checksum.
    """
    data = directory.read_bytes(STEP_METADATA)
    where = str(directory.path / STEP_METADATA)
    return StepDocument() if data is None else StepDocument.decode(data, where)


def describe_step(directory: CheckedDirectory, item_metadata: object) -> StepMetadata:
    """Return the metadata in `_CHECKPOINT_METADATA` together with those of the items.

    Raises:
        FormatError: The document is not understood.
        CorruptionError: The file differs from its checksum.
    """
    step = read_step(directory)
    return StepMetadata(
        item_handlers=step.item_handlers,
        item_metadata=item_metadata,
        metrics=_object(step.other.get("metrics")),
        performance_metrics=StepStatistics(_object(step.other.get("performance_metrics"))),
        init_timestamp_nsecs=step.init_timestamp_nsecs,
        commit_timestamp_nsecs=step.commit_timestamp_nsecs,
        custom_metadata=step.custom_metadata,
    )


def _object(value: object) -> Mapping[str, object]:
    """Return a JSON object; an empty one for anything else."""
    return value if is_json_object(value) else {}


def write_step(directory: Path, document: StepDocument) -> None:
    """Write `_CHECKPOINT_METADATA`, replacing one that a handler may have written."""
    if not isinstance(directory, StorePath):
        (directory / STEP_METADATA).unlink(missing_ok=True)
    write_file(directory / STEP_METADATA, document.encode())


def add_item_handler(item: Path, typestr: str) -> None:
    """Record the handler of an item in the document of its checkpoint, if it has one.

    Raises:
        FormatError: The document is not understood.
    """
    directory = item.parent
    document = read_step(CheckedDirectory(directory))
    if isinstance(document.item_handlers, Mapping):
        handlers = {**document.item_handlers, item.name: typestr}
        changed = structs.replace(document, item_handlers=handlers)
        replace_file(directory / STEP_METADATA, changed.encode())


def _encode_name(name: str) -> str:
    text = b2a_base64(name.encode(), newline=False).decode()
    return text.replace("+", "-").replace("/", "_")


def _decode_name(key: str) -> str:
    return a2b_base64(key.replace("-", "+").replace("_", "/")).decode()
