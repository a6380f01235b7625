"""One save from the first file to the commit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from orbit_ckpt.checkpointer.options import SessionOptions
from orbit_ckpt.metadata.codec import copy_json
from orbit_ckpt.metadata.files import write_step
from orbit_ckpt.metadata.schema import StepDocument
from orbit_ckpt.metadata.step_details import StepDetails, write_step_details
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
        details: StepDetails | None = None,
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
        self._custom = check_json_object(custom_metadata or {})
        self._details = details
        self._began_ns = time.time_ns()

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
        if self._details is not None:
            write_step_details(self.directory, self._details)
        write_manifest(self.directory)
        self._atomic.commit()


def check_json_object(value: object) -> dict[str, object]:
    """Return a copy of a JSON object of the user's.

    Raises:
        TypeError: It is something else, or holds what cannot be written as JSON.
    """
    wanted = "Use a dict of dicts, lists, strings, numbers, booleans and None, with keys of str."
    if not isinstance(value, Mapping):
        found = type(value).__name__
        raise TypeError(f"custom_metadata must be a JSON object, found {found}. {wanted}")
    fields = cast(Mapping[object, object], value)
    wrong = [key for key in fields if not isinstance(key, str)]
    if wrong:
        raise TypeError(f"custom_metadata must be a JSON object, found key {wrong[0]!r}. {wanted}")
    try:
        return cast(dict[str, object], copy_json(dict(fields)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"custom_metadata must be a JSON object: {error}. {wanted}") from error
