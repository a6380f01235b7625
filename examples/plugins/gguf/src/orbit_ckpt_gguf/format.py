"""The format, as orbit_ckpt sees it; imports nothing that reads arrays until it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from orbit_ckpt.formats import Format, WritableFormat

if TYPE_CHECKING:
    from orbit_ckpt.formats import StoredTree, WriteRequest

MAGIC = b"GGUF"


class GGUFFormat(Format, WritableFormat):
    """Reads GGUF of versions 2 and 3, and writes version 3.

    A tree is a flat dict whose keys are the names of the tensors. The file's metadata is the custom
    metadata of the checkpoint.
    """

    name = "gguf"
    extra = None
    writes_as = "gguf"

    @override
    def sniff(self, path: Path) -> str | None:
        if path.is_dir():
            return "it is a directory"
        with path.open("rb") as file:
            return None if file.read(len(MAGIC)) == MAGIC else "it does not begin with GGUF"

    @override
    def open(self, path: Path) -> StoredTree:
        from orbit_ckpt_gguf.read import open_tree  # noqa: PLC0415 - imports NumPy

        return open_tree(path)

    @override
    def write(self, request: WriteRequest) -> None:
        from orbit_ckpt_gguf.write import write  # noqa: PLC0415 - imports JAX

        write(request)
