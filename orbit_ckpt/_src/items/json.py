"""JSON as an item."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbit_ckpt._src.items.base import (
    ORBAX_PREFIX,
    CheckpointArgs,
    item_name,
    register_with_handler,
)
from orbit_ckpt._src.items.phases import save_in_background, save_in_phases
from orbit_ckpt._src.items.unused import warn_of_unused
from orbit_ckpt._src.metadata.json_item import JSON_FILE, find_json_file, read_json_item
from orbit_ckpt._src.metadata.user_json import encode_user_json
from orbit_ckpt._src.runtime.checks import check_type
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.runtime.process import this_process
from orbit_ckpt._src.storage.atomic import write_file
from orbit_ckpt._src.storage.integrity import open_checked, write_manifest
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.unused import warn_set


class JsonHandler:
    """Saves and restores what JSON can hold."""

    def __init__(
        self, filename: str | None = None, *, multiprocessing_options: object = None
    ) -> None:
        """Make a handler.

        Args:
            filename: Name of the file in the item's directory; `metadata` by default. Managers call
                the file of the metrics as the item, which is found without a name.
            multiprocessing_options: Does nothing here, give it to the checkpointer or manager.
        """
        warn_of_unused(self, multiprocessing_options=multiprocessing_options)
        check_type("filename", filename, str, "a str", "Give the name of a file.")
        self._filename = filename

    @classmethod
    def typestr(cls) -> str:
        """Return the name under which checkpoints record this handler; Orbax's own."""
        return f"{ORBAX_PREFIX}json_checkpoint_handler.JsonCheckpointHandler"

    def save(
        self,
        directory: str | os.PathLike[str],
        item: object = None,
        args: JsonSaveArgs | None = None,
    ) -> None:
        """Write a value into an existing directory.

        Raises:
            TypeError: It is not JSON.
        """
        save_in_phases(self, directory, args or JsonSaveArgs(item))

    async def async_save(
        self,
        directory: str | os.PathLike[str],
        item: object = None,
        args: JsonSaveArgs | None = None,
    ) -> list[Future[None]]:
        """Take a value from the caller; see `PyTreeHandler.async_save`."""
        return await save_in_background(self, directory, args or JsonSaveArgs(item))

    async def stage(self, directory: Path, args: JsonSaveArgs, *, copy: bool) -> Commit:  # noqa: ARG002 - the text is a copy
        """Take the value from the caller; see `StagingHandler`.

        Raises:
            TypeError: It is not JSON.
        """
        try:
            text = encode_user_json(args.item)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{item_name(directory)}: a JSON item must be of dicts, lists, strings, numbers, "
                f"booleans and None: {error}"
            ) from error

        async def write() -> None:
            if this_process().is_primary:
                await asyncio.to_thread(write_file, directory / (self._filename or JSON_FILE), text)

        return Commit(write, lambda: write_manifest(directory))

    def restore(
        self,
        directory: str | os.PathLike[str],
        item: object = None,  # noqa: ARG002 - Orbax's signature
        args: JsonRestoreArgs | None = None,  # noqa: ARG002 - Orbax's signature
    ) -> Any:  # any JSON value
        """Read a value.

        Raises:
            CheckpointNotFoundError: There is no such file.
            FormatError: It is not JSON.
        """
        return read_json_item(open_checked(resolve_path(directory)), self._filename)

    def file_in(self, directory: Path) -> str:
        """Return the name of the file in an item's directory; Orbax's v1 API has its own."""
        return find_json_file(directory, self._filename)

    def finalize(self, directory: str | os.PathLike[str]) -> None:
        """Do nothing: `save` has finished its directory."""

    def close(self) -> None:
        """Give up resources; there are none."""


@register_with_handler(JsonHandler, for_save=True)
@dataclass
class JsonSaveArgs(CheckpointArgs):
    """What to save as JSON.

    Attributes:
        item: The value.
    """

    item: object


@register_with_handler(JsonHandler, for_restore=True)
@dataclass
class JsonRestoreArgs(CheckpointArgs):
    """How to restore JSON.

    Attributes:
        item: Does nothing here.
    """

    item: object = None

    def __post_init__(self) -> None:
        warn_set("JsonRestore", {"item": (self.item, None, "a value comes back as it was saved")})
