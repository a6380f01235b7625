"""Strings: all of a tree in one JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.metadata.files import find_string
from orbit_ckpt._src.metadata.schema import STRING, LeafDetail
from orbit_ckpt._src.metadata.values import StringMetadata
from orbit_ckpt._src.storage.layout import STRINGS
from orbit_ckpt._src.type_handlers.base import (
    Future,
    ParamInfo,
    RestoreArgs,
    SaveArgs,
    leaves_to_primary,
    load_batch_of,
    save_batch_of,
)
from orbit_ckpt._src.type_handlers.described import string_metadata

NUMPY = "numpy"
"""Type recorded for a `np.str_`."""


class StringHandler:
    """Handles `str`."""

    def typestr(self) -> str:
        """See `TypeHandler`."""
        return STRING

    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[StringMetadata]:
        """See `TypeHandler`."""
        return string_metadata(infos)

    def snapshot(self, values: Sequence[object]) -> Sequence[object]:
        """See `SnapshotHandler`; nobody can change these."""
        return values

    async def serialize(
        self,
        values: Sequence[object],
        infos: Sequence[ParamInfo],
        args: Sequence[SaveArgs] | None = None,  # noqa: ARG002 - the interface has it
    ) -> Sequence[Future]:
        """See `TypeHandler`."""
        if leaves_to_primary(infos):
            return []
        for value, info in zip(values, infos, strict=True):
            batch = save_batch_of(info)
            batch.strings[info.name] = str(value)
            if isinstance(value, np.str_):
                batch.details[info.name] = LeafDetail(type=NUMPY)
        return []

    async def deserialize(
        self,
        infos: Sequence[ParamInfo],
        args: Sequence[RestoreArgs] | None = None,  # noqa: ARG002 - the interface has it
    ) -> Sequence[str]:
        """Return the strings.

        Raises:
            CorruptionError: A string is not in the file.
        """
        return [_find(info) for info in infos]

    def stored_text(self, info: ParamInfo) -> str | None:
        """See `TextStorage`."""
        return find_string(load_batch_of(info).strings, info.name)

    def finalize(self, directory: Path) -> None:
        """See `TypeHandler`."""


def _find(info: ParamInfo) -> str:
    text = find_string(load_batch_of(info).strings, info.name)
    if text is None:
        raise CorruptionError(
            f"{info.label}: no string {info.name!r} in {info.parent_dir / STRINGS}. The file is "
            "incomplete; restore another copy of the checkpoint.",
            path=info.label,
            file=str(info.parent_dir / STRINGS),
        )
    detail = load_batch_of(info).details.get(info.name)
    return np.str_(text) if detail is not None and detail.type == NUMPY else text
