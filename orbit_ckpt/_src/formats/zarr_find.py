"""Find zarr2 arrays in nested directories by the names of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.storage.layout import ZARR2_DOCUMENT
from orbit_ckpt._src.storage.store_path import StorePath


def find_arrays(
    directory: Path, *, skip_links: bool = False
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield names and directories of the arrays in a directory, its own with no name.

    Args:
        directory: Where to look.
        skip_links: Whether to pass over links to directories.

    Raises:
        FormatError: There is a link to a directory, which may lead anywhere.
    """
    if isinstance(directory, StorePath):
        keys = [key.split("/") for key in directory.keys_below()]
        found = [parts[:-1] for parts in keys if parts[-1] == ZARR2_DOCUMENT]
        yield from ((tuple(parts), str(directory.joinpath(*parts))) for parts in found)
        return
    for at, below, files in os.walk(directory, onerror=_fail):
        below.sort()
        for name in below:
            if not skip_links and os.path.islink(os.path.join(at, name)):
                raise FormatError(
                    f"{os.path.join(at, name)} is a link to a directory, which is not followed. "
                    "Put the directory itself there."
                )
        if ZARR2_DOCUMENT in files:
            yield Path(at).relative_to(directory).parts, at


def has_arrays(directory: Path) -> bool:
    """Return whether there are arrays in a directory, or a link, which `find_arrays` refuses."""
    try:
        return next(find_arrays(directory), None) is not None
    except FormatError:
        return True


def _fail(error: OSError) -> None:
    raise error
