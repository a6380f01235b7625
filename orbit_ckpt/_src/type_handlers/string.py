"""Strings: all of a tree in one JSON file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.metadata.files import find_string
from orbit_ckpt._src.metadata.schema import STRING, LeafDetail
from orbit_ckpt._src.metadata.values import StringMetadata
from orbit_ckpt._src.runtime.checks import check_type
from orbit_ckpt._src.runtime.futures import Future
from orbit_ckpt._src.storage.inner_path import is_inner_name
from orbit_ckpt._src.storage.layout import RESERVED, STRINGS
from orbit_ckpt._src.type_handlers.base import (
    ParamInfo,
    RestoreArgs,
    SaveArgs,
    TypeHandler,
    leaves_to_primary,
    load_batch_of,
    save_batch_of,
)
from orbit_ckpt._src.type_handlers.capabilities import SnapshotHandler, TextStorage
from orbit_ckpt._src.type_handlers.described import string_metadata

NUMPY = "numpy"
"""Type recorded for a `np.str_`."""


class StringHandler(TypeHandler, SnapshotHandler, TextStorage):
    """Handles `str`.

    Attributes:
        filename: File with the strings of a tree.
    """

    filename: str = STRINGS  # for subclasses that do not call `__init__`

    def __init__(self, filename: str | None = None) -> None:
        """Make a handler.

        Args:
            filename: File with the strings of a tree; `_strings.json` by default. The handler that
                restores them needs the same.

        Raises:
            ValueError: The checkpoint has another file of this name.
        """
        check_type("filename", filename, str, "a str", "Give the name of a file.")
        self.filename = filename or STRINGS
        is_taken = self.filename in RESERVED and self.filename != STRINGS
        if is_taken or not is_inner_name(self.filename) or "/" in self.filename:
            raise ValueError(
                f"filename={filename!r} cannot be the file of strings. Give another name, such as "
                "'texts.json'."
            )

    @override
    def typestr(self) -> str:
        return STRING

    @override
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[StringMetadata]:
        return string_metadata(infos)

    @override
    def snapshot(self, values: Sequence[object]) -> Sequence[object]:
        return values  # they are immutable

    @override
    async def serialize(
        self,
        values: Sequence[object],
        infos: Sequence[ParamInfo],
        args: Sequence[SaveArgs] | None = None,
    ) -> Sequence[Future]:
        if leaves_to_primary(infos):
            return []
        for value, info in zip(values, infos, strict=True):
            batch = save_batch_of(info)
            batch.strings.setdefault(self.filename, {})[info.name] = str(value)
            if isinstance(value, np.str_):
                batch.details[info.name] = LeafDetail(type=NUMPY)
        return []

    @override
    async def deserialize(
        self,
        infos: Sequence[ParamInfo],
        args: Sequence[RestoreArgs] | None = None,
    ) -> Sequence[str]:
        """Return the strings.

        Raises:
            CorruptionError: A string is not in the file.
        """
        return [self._find(info) for info in infos]

    @override
    def stored_text(self, info: ParamInfo) -> str | None:
        return find_string(
            load_batch_of(info).strings_in(info.parent_dir, self.filename), info.name
        )

    def _find(self, info: ParamInfo) -> str:
        text = self.stored_text(info)
        if text is None:
            file = info.parent_dir / self.filename
            raise CorruptionError(
                f"{info.label}: no string {info.name!r} in {file}. The file is incomplete; restore "
                "another copy of the checkpoint. If it was saved with StringHandler(filename=...), "
                "register that to restore it.",
                path=info.label,
                file=str(file),
            )
        detail = load_batch_of(info).details.get(info.name)
        return np.str_(text) if detail is not None and detail.type == NUMPY else text
