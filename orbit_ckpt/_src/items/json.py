"""JSON as an item."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from orbit_ckpt._src.items.arguments import CheckpointArgs
from orbit_ckpt._src.items.base import ORBAX_PREFIX, item_name, warn_of_unused
from orbit_ckpt._src.items.phases import ItemHandler
from orbit_ckpt._src.metadata.codec import JSON_FILE, find_json_file, read_json_item
from orbit_ckpt._src.metadata.user_json import encode_user_json
from orbit_ckpt._src.runtime.checks import check_type
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.runtime.process import this_process
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.integrity import open_checked, write_manifest
from orbit_ckpt._src.storage.path import PathLike, resolve_path
from orbit_ckpt._src.text import warn_set


@dataclass
class JsonSaveArgs(CheckpointArgs):
    """A value to save as JSON.

    Attributes:
        item: The value.
    """

    item: object


@dataclass
class JsonRestoreArgs(CheckpointArgs):
    """How to restore JSON.

    Attributes:
        item: Ignored.
    """

    item: object = None

    def __post_init__(self) -> None:
        warn_set("JsonRestore", {"item": (self.item, None, "a value comes back as it was saved")})


class JsonHandler(ItemHandler[JsonSaveArgs], save_args=JsonSaveArgs, restore_args=JsonRestoreArgs):
    """Saves and restores JSON values."""

    def __init__(
        self, filename: str | None = None, *, multiprocessing_options: object = None
    ) -> None:
        """Make a handler.

        Args:
            filename: Name of the file in the item's directory; `metadata` by default. Managers name
                the metrics file after the item; it is found without being named.
            multiprocessing_options: Ignored; give it to the checkpointer or manager.
        """
        warn_of_unused(self, multiprocessing_options=multiprocessing_options)
        check_type("filename", filename, str, "a str", "Give the name of a file.")
        self._filename = filename

    @classmethod
    def typestr(cls) -> str:
        """Return the name that checkpoints record; Orbax's own."""
        return f"{ORBAX_PREFIX}json_checkpoint_handler.JsonCheckpointHandler"

    @override
    async def stage(self, directory: Path, args: JsonSaveArgs, *, copy: bool) -> Commit:
        """Encode the value.

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

    @override
    def restore(
        self,
        directory: PathLike,
        item: object = None,
        args: JsonRestoreArgs | None = None,
    ) -> Any:  # any JSON value
        """Read a value.

        Raises:
            CheckpointNotFoundError: The file does not exist.
            FormatError: It is not JSON.
        """
        return read_json_item(open_checked(resolve_path(directory)), self._filename)

    def file_in(self, directory: Path) -> str:
        """Return the name of the file in an item's directory; Orbax's v1 API uses its own."""
        return find_json_file(directory, self._filename)
