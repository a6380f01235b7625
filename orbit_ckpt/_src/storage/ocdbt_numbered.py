"""Find the root of an OCDBT database in which each version has a manifest of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import tensorstore as ts

from orbit_ckpt._src.storage.buckets import shared_context
from orbit_ckpt._src.storage.inner_path import check_name
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.ocdbt_decode import Child


def numbered_root(directory: Path, spec: dict[str, Any]) -> Child | None:
    """Return the root of the newest version, which TensorStore finds; None if it has no keys.

    Args:
        directory: Root of the database.
        spec: TensorStore's spec of the files in it.

    Raises:
        UnsafePathError: The root is outside the database.
        ValueError: TensorStore cannot read the database.
    """
    base = ts.KvStore.open(spec, context=shared_context()).result()
    manifest: dict[str, Any] = ts.ocdbt.dump(base, None).result()
    versions: Sequence[dict[str, Any]] = manifest["versions"]
    location: str | None = versions[-1]["root"].get("location") if versions else None
    if location is None:
        return None
    # btreenode:<base>:<path>:<offset>:<length>, the texts percent-encoded
    _, above, path, offset, length = location.split(":")
    above, path = unquote(above), unquote(path)
    check_name(f"{above}{path}", str(directory))
    root = f"{directory}/{above}"
    return Child(Extent(root + path, int(offset), int(length)), root, b"")
