"""Metadata stored with a run as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from orbit_ckpt._src.manager.options import CheckpointManagerOptions
from orbit_ckpt._src.metadata.codec import decode_json
from orbit_ckpt._src.metadata.user_json import encode_user_json
from orbit_ckpt._src.storage.atomic import (
    AtomicDirectory,
    make_directories,
    sync_directory,
    write_file,
)
from orbit_ckpt._src.storage.inner_path import read_inner
from orbit_ckpt._src.storage.path import storage_errors
from orbit_ckpt._src.storage.store_path import StorePath

_DIRECTORY = "metadata"
_FILE = "_ROOT_METADATA"
_OLD_FILE = "metadata"


@dataclass(frozen=True, slots=True)
class RootMetadata:
    """Metadata of a run.

    Attributes:
        internal_metadata: Reserved for the library; empty so far.
        custom_metadata: The JSON object that the user gave to the manager.
    """

    internal_metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    custom_metadata: Mapping[str, object] = field(default_factory=dict[str, object])


class _Document(msgspec.Struct):
    internal_metadata: dict[str, object] | None = None
    custom_metadata: dict[str, object] | None = None
    custom: dict[str, object] | None = None  # the name in Orbax 0.11.0


def open_root(
    root: Path, custom: Mapping[str, object] | None, options: CheckpointManagerOptions
) -> None:
    """Create the directory of a run and write its metadata, as far as the options ask for it.

    Raises:
        StorageError: The storage refused.
        TypeError: The metadata is not JSON.
    """
    with storage_errors(root, "opening a run", "Check that it is a writable directory."):
        if options.create and not options.read_only:
            make_directories(root)
        if custom and options.save_root_metadata and not options.read_only:
            _write(root, custom)


def read_root_metadata(root: Path, given: Mapping[str, object]) -> RootMetadata:
    """Return the stored metadata of a run, else that given to the manager.

    Raises:
        FormatError: The stored metadata is damaged.
    """
    for name in (_FILE, _OLD_FILE):
        file = root / _DIRECTORY / name
        if file.is_file():
            data = read_inner(root, f"{_DIRECTORY}/{name}")
            if name == _OLD_FILE:  # holds the user's object only
                return RootMetadata({}, decode_json(data, dict[str, object], str(file)))
            found = decode_json(data, _Document, str(file))
            custom = found.custom_metadata or found.custom or {}
            return RootMetadata(found.internal_metadata or {}, custom)
    return RootMetadata(custom_metadata=given)


def _write(root: Path, custom: Mapping[str, object]) -> None:
    directory = root / _DIRECTORY
    if (directory / _FILE).exists() or (directory / _OLD_FILE).exists():
        return
    text = encode_user_json({"internal_metadata": {}, "custom_metadata": dict(custom)})
    if isinstance(root, StorePath):
        write_file(directory / _FILE, text)
        return
    directory.mkdir(exist_ok=True)
    # never committed; if this process dies, cleanup removes it like an unfinished save
    with AtomicDirectory(root / _FILE) as scratch:
        write_file(scratch.path / _FILE, text)
        (scratch.path / _FILE).rename(directory / _FILE)
    sync_directory(directory)
    sync_directory(root)
