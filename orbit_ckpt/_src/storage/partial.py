"""Files and directories of other formats in progress, beside their destination.

Their writer locks them, so that another one can tell them from leftovers of a dead process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

from orbit_ckpt._src.storage.directory_lock import try_lock, unlock
from orbit_ckpt._src.storage.layout import partial_name, partial_of

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def partial_path(final: Path, make: Callable[[Path], None]) -> Generator[Path]:
    """Make and lock a path to be renamed to `final`; remove it if it remains after the block.

    Leftovers of earlier writers of the same path are removed first.

    Args:
        final: The path.
        make: Makes an empty file or directory.
    """
    remove_partial(final, os.listdir(final.parent))
    while True:
        temporary = final.with_name(partial_name(final.name, secrets.token_hex(4)))
        make(temporary)
        lock = try_lock(temporary)
        if lock is not None:
            break  # else another process removed it before it was locked
    try:
        yield temporary
    finally:
        remove_path(temporary)
        unlock(lock)


def remove_partial(final: Path, names: Iterable[str]) -> None:
    """Remove leftovers of a path's writers whose process is gone.

    Args:
        final: The path.
        names: The entries of its directory, perhaps tens of thousands of steps.
    """
    prefix = f".{final.name}."
    found = [name for name in names if name.startswith(prefix)]
    for path in sorted(final.with_name(name) for name in found if partial_of(name) == final.name):
        lock = None if path.is_symlink() else try_lock(path, needs_lock=True)
        if lock is not None:
            _logger.info("Removing %s, left behind by a conversion that did not finish", path)
            remove_path(path)
            unlock(lock)


def remove_path(path: Path) -> None:
    """Remove a file or a directory, if it exists and can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()
