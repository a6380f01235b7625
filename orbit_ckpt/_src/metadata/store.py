"""Orbax's store of metadata documents: JSON objects in files."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from typing_extensions import override

from orbit_ckpt._src.guards import is_json_object
from orbit_ckpt._src.metadata.user_json import encode_user_json
from orbit_ckpt._src.runtime.process import ForkSafeLock
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.integrity import renew_manifest
from orbit_ckpt._src.storage.layout import partial_name
from orbit_ckpt._src.storage.path import resolve_path

_logger = logging.getLogger(__name__)


class MetadataStore(Protocol):
    """Reads and writes JSON objects in files."""

    def is_blocking_writer(self) -> bool:
        """Return whether a write has ended when `write` returns."""
        ...

    def write(self, file_path: Any, metadata: Mapping[str, Any]) -> None:
        """Write a file, or replace it."""
        ...

    def read(self, file_path: Any) -> dict[str, Any] | None:
        """Return the contents of a file; None if there is no readable one."""
        ...

    def update(self, file_path: Any, **kwargs: Any) -> None:
        """Set fields of a file and keep the others; create the file if there is none."""
        ...

    def wait_until_finished(self) -> None:
        """Wait for writes in progress, and raise their errors."""
        ...

    def close(self) -> None:
        """Release resources."""
        ...


class JsonMetadataStore(MetadataStore):
    """Reads and writes JSON objects in files; a file is complete or as it was.

    Threads may share a store. Only one process may write a file at a time.
    """

    def __init__(self, *, enable_write: bool, blocking_write: bool) -> None:
        self.can_write = enable_write
        self._pool = None if blocking_write else Workers(1, "orbit_ckpt-metadata")
        self._running: list[Future[None]] = []
        self._writing = ForkSafeLock()

    @override
    def is_blocking_writer(self) -> bool:
        return self._pool is None

    @override
    def write(self, file_path: str | os.PathLike[str], metadata: Mapping[str, Any]) -> None:
        """Write a file, or replace it.

        Raises:
            TypeError: The metadata is not JSON.
        """
        self._change(partial(_write, file_path, encode_user_json(dict(metadata))))

    @override
    def read(self, file_path: str | os.PathLike[str]) -> dict[str, Any] | None:
        try:
            found: object = json.loads(resolve_path(file_path).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            _logger.warning("%s cannot be read: %s", file_path, error)
            return None
        return dict(found) if is_json_object(found) else None

    @override
    def update(self, file_path: str | os.PathLike[str], **kwargs: Any) -> None:
        def change() -> None:
            _write(file_path, encode_user_json({**(self.read(file_path) or {}), **kwargs}))

        self._change(change)

    @override
    def wait_until_finished(self) -> None:
        running, self._running = self._running, []
        for future in running:
            future.result()

    @override
    def close(self) -> None:
        self.wait_until_finished()

    def _change(self, change: Callable[[], None]) -> None:
        if not self.can_write:
            _logger.warning("Nothing is written: the metadata store is read-only")
            return
        if self._pool is not None:
            self._running.append(self._pool.submit(change))
            return
        with self._writing:
            change()


def writes_metadata(store: object) -> bool:
    """Return whether a value is a store of `metadata_store` that writes."""
    return isinstance(store, JsonMetadataStore) and store.can_write


def _write(file_path: str | os.PathLike[str], data: bytes) -> None:
    path = resolve_path(file_path)
    if directory_of(path).has_rename:
        scratch = path.with_name(partial_name(path.name, os.urandom(4).hex()))
        write_file(scratch, data)
        scratch.replace(path)
    else:
        path.write_bytes(data)  # an object is replaced as a whole
    renew_manifest(path.parent)


def metadata_store(*, enable_write: bool, blocking_write: bool = False) -> MetadataStore:
    """Return a store of metadata documents.

    Args:
        enable_write: Whether it writes; otherwise writes do nothing, with a warning in the log.
        blocking_write: Whether a write has ended when `write` returns.
    """
    return JsonMetadataStore(enable_write=enable_write, blocking_write=blocking_write)
