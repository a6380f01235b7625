"""One save from the first file to the commit."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from orbit_ckpt.checkpointer.options import SessionOptions
from orbit_ckpt.metadata.files import write_step
from orbit_ckpt.metadata.schema import StepDocument
from orbit_ckpt.storage.atomic import AtomicDirectory
from orbit_ckpt.storage.integrity import write_manifest


class SaveSession:
    """A checkpoint being written.

    Use as a context manager: leaving it without `commit` removes everything. Items are written
    into `directory`, then `commit` records what they are and makes the checkpoint visible.
    """

    def __init__(
        self,
        path: Path,
        *,
        overwrite: bool,
        options: SessionOptions,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Prepare a session; nothing is created yet.

        Raises:
            TypeError: `custom_metadata` cannot be written as JSON.
        """
        self._atomic = AtomicDirectory(
            path,
            overwrite=overwrite,
            mode=options.atomicity.mode,
            permissions=options.files.path_permission_mode,
        )
        self._custom = dict(custom_metadata or {})
        self._began_ns = time.time_ns()
        check_json(self._custom)

    @property
    def directory(self) -> Path:
        """Where items are written."""
        return self._atomic.path

    def __enter__(self) -> SaveSession:
        self._atomic.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._atomic.__exit__(*exc)

    def commit(self, item_handlers: str | Mapping[str, str]) -> None:
        """Make the checkpoint durable and visible.

        Args:
            item_handlers: Typestr of the item's handler, or of every item's by name.
        """
        document = StepDocument(
            item_handlers=item_handlers,
            init_timestamp_nsecs=self._began_ns,
            commit_timestamp_nsecs=time.time_ns(),
            custom_metadata=self._custom,
        )
        write_step(self.directory, document)
        write_manifest(self.directory)
        self._atomic.commit()


def check_json(value: object) -> None:
    """Check that a value can be written as JSON.

    Raises:
        TypeError: It cannot.
    """
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"custom_metadata cannot be written as JSON: {error}. Use dicts, lists, strings, "
            "numbers, booleans and None."
        ) from error
