"""Read and write the JSON documents of an item's directory."""

from __future__ import annotations

import json
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from orbit_ckpt.arrays.sharding import ShardingMetadata, decode_sharding, encode_sharding
from orbit_ckpt.errors import FormatError
from orbit_ckpt.metadata.schema import (
    RANDOM_KEY_IMPL,
    ArrayRecord,
    StepDocument,
    TreeDetails,
    TreeDocument,
    expect,
    expect_list,
    expect_object,
    parse_json,
)
from orbit_ckpt.storage.atomic import write_file
from orbit_ckpt.storage.integrity import CheckedDirectory
from orbit_ckpt.storage.layout import (
    ARRAY_METADATAS,
    SHARDINGS,
    STEP_METADATA,
    STRINGS,
    TREE_DETAILS,
    TREE_METADATA,
)


def write_json(path: Path, document: object) -> None:
    """Write a JSON document and wait until it is on the disk."""
    write_file(path, json.dumps(document, separators=(",", ":")).encode())


def write_tree(directory: Path, tree: TreeDocument, details: TreeDetails) -> None:
    """Write `_METADATA` and, if there is something to say, our own details beside it."""
    if details:
        write_json(directory / TREE_DETAILS, details.to_json())
    write_json(directory / TREE_METADATA, tree.to_json())


def write_arrays(
    directory: Path,
    process: int,
    records: Sequence[ArrayRecord],
    shardings: Mapping[str, ShardingMetadata],
) -> None:
    """Write what is known of JAX arrays; no file that would be empty."""
    if records:
        (directory / ARRAY_METADATAS).mkdir(exist_ok=True)
        document = {"array_metadatas": [record.to_json() for record in records]}
        write_json(directory / ARRAY_METADATAS / f"process_{process}", document)
    if shardings:
        texts = {sharding: encode_sharding(sharding) for sharding in set(shardings.values())}
        write_json(
            directory / SHARDINGS,
            {_encode_name(name): texts[sharding] for name, sharding in shardings.items()},
        )


def write_strings(directory: Path, strings: Mapping[str, str]) -> None:
    """Write the string leaves of a tree by storage name, if there are any.

    Orbax looks a name up as a JSON pointer without escaping it: to its reader a slash in a name is
    a level of nesting. Such strings are written under both forms.
    """
    if not strings:
        return
    document: dict[str, object] = dict(strings)
    for name, text in strings.items():
        *parents, last = name.split("/")
        node = document
        for parent in parents:
            below = node.setdefault(parent, {})
            if not isinstance(below, dict):
                break  # a string has this name; only Orbax misses the nested form
            node = cast(dict[str, object], below)
        else:
            node.setdefault(last, text)
    write_json(directory / STRINGS, document)


def read_tree(directory: CheckedDirectory) -> TreeDocument | None:
    """Return `_METADATA` with the details beside it applied, None if there is none.

    Raises:
        FormatError: A document is not understood.
        CorruptionError: A file differs from its checksum.
    """
    document = _read(directory, TREE_METADATA)
    if document is None:
        return None
    return TreeDocument.from_json(document, str(directory.path / TREE_METADATA))


def read_details(directory: CheckedDirectory) -> TreeDetails:
    """Return our own details of a tree; those of other writers' checkpoints are empty.

    Raises:
        FormatError: The document is not understood.
        CorruptionError: The file differs from its checksum.
    """
    document = _read(directory, TREE_DETAILS)
    where = str(directory.path / TREE_DETAILS)
    return TreeDetails() if document is None else TreeDetails.from_json(document, where)


def read_arrays(directory: CheckedDirectory, *, keys_only: bool = False) -> dict[str, ArrayRecord]:
    """Return what the first process recorded of JAX arrays, by storage name.

    Args:
        directory: Where the document is.
        keys_only: Whether only typed PRNG keys matter; most documents list none and are then not
            decoded.

    Raises:
        FormatError: The document is not understood.
        CorruptionError: The file differs from its checksum.
    """
    name = f"{ARRAY_METADATAS}/process_0"
    data = directory.read_bytes(name)
    if data is None or (keys_only and _is_without_keys(data)):
        return {}
    where = str(directory.path / name)
    document = parse_json(data, where)
    rows = expect_list(expect_object(document, where).get("array_metadatas"), where)
    records = [ArrayRecord.from_json(row, where, str(i)) for i, row in enumerate(rows)]
    return {record.name: record for record in records}


def _is_without_keys(data: bytes) -> bool:
    is_whole = data.startswith(b'{"array_metadatas"') and data.endswith(b"]}")
    return is_whole and RANDOM_KEY_IMPL.encode() not in data


def read_shardings(directory: CheckedDirectory) -> dict[str, ShardingMetadata]:
    """Return the recorded shardings by storage name; kinds not known here are left out.

    Raises:
        FormatError: The document is not understood.
        CorruptionError: The file differs from its checksum.
    """
    document = _read(directory, SHARDINGS)
    if document is None:
        return {}
    where = str(directory.path / SHARDINGS)
    shardings: dict[str, ShardingMetadata] = {}
    decoded: dict[str, ShardingMetadata | None] = {}  # most leaves share one
    for key, value in expect_object(document, where).items():
        try:
            text = expect(value, str, where)
            if text not in decoded:
                decoded[text] = decode_sharding(text)
            sharding = decoded[text]
            if sharding is not None:
                shardings[_decode_name(key)] = sharding
        except ValueError as error:
            raise FormatError(f"{where}: {key!r}: {error}") from error
    return shardings


def read_strings(directory: CheckedDirectory) -> dict[str, object]:
    """Return the contents of the strings file, see `find_string`.

    Raises:
        FormatError: The document is not understood.
        CorruptionError: The file differs from its checksum.
    """
    document = _read(directory, STRINGS)
    return {} if document is None else expect_object(document, str(directory.path / STRINGS))


def find_string(strings: Mapping[str, object], name: str) -> str | None:
    """Return the string stored under a name, None if there is none."""
    found = strings.get(name)
    if isinstance(found, str):
        return found
    node: object = strings
    for part in name.split("/"):
        node = cast(Mapping[str, object], node).get(part) if isinstance(node, dict) else None
    return node if isinstance(node, str) else None


def read_step(directory: CheckedDirectory) -> StepDocument:
    """Return `_CHECKPOINT_METADATA`; checkpoints of old writers have none and give an empty one.

    Raises:
        FormatError: The document is not understood.
        CorruptionError: The file differs from its checksum.
    """
    document = _read(directory, STEP_METADATA)
    where = str(directory.path / STEP_METADATA)
    return StepDocument() if document is None else StepDocument.from_json(document, where)


def write_step(directory: Path, document: StepDocument) -> None:
    """Write `_CHECKPOINT_METADATA`, replacing one written earlier in the same save."""
    (directory / STEP_METADATA).unlink(missing_ok=True)
    write_json(directory / STEP_METADATA, document.to_json())


def _read(directory: CheckedDirectory, name: str) -> object:
    data = directory.read_bytes(name)
    if data is None:
        return None
    where = str(directory.path / name)
    document = parse_json(data, where)
    if document is None:
        raise FormatError(f"{where}: expected a JSON object, found null")
    return document


def _encode_name(name: str) -> str:
    text = b2a_base64(name.encode(), newline=False).decode()
    return text.replace("+", "-").replace("/", "_")


def _decode_name(key: str) -> str:
    return a2b_base64(key.replace("-", "+").replace("_", "/")).decode()
