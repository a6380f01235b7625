"""Check one checkpoint: its manifest, its items, and all their contents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from orbit_ckpt._src.errors import (
    CheckpointError,
    CorruptionError,
    UnsafePathError,
)
from orbit_ckpt._src.formats.base import Format, allows_linked_files
from orbit_ckpt._src.formats.orbax_layout import holds_tree
from orbit_ckpt._src.items.json import JsonHandler
from orbit_ckpt._src.items.registry import handler_class_in
from orbit_ckpt._src.metadata.files import read_step
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.storage.inner_path import InnerFiles, check_name, sizes_below
from orbit_ckpt._src.storage.integrity import CheckedDirectory, has_lost_manifest
from orbit_ckpt._src.storage.layout import (
    COMMIT_MARKER,
    IN_PROGRESS,
    MANIFEST,
    OCDBT_MANIFEST,
    PINNED,
    STEP_METADATA,
    is_process_directory,
    is_temporary_name,
)
from orbit_ckpt._src.storage.manifest import damaged_file
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.store_path import StorePath, is_damage
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY
from orbit_ckpt._src.verify.foreign import verify_foreign
from orbit_ckpt._src.verify.report import Findings
from orbit_ckpt._src.verify.tree import verify_tree

_MEASURE_BYTES = 1 << 22
_TREES = ("PyTreeCheckpointHandler", "StandardCheckpointHandler")
_UNRECORDED = frozenset({MANIFEST, COMMIT_MARKER, IN_PROGRESS, PINNED})


class Verifier:
    """Checks one checkpoint.

    Attributes:
        findings: The findings so far.
    """

    def __init__(self, findings: Findings) -> None:
        self.findings = findings

    async def check(self, foreign: Format | None) -> None:
        """Check everything.

        Args:
            foreign: The format if another program's, None for our own and Orbax's.
        """
        checkpoint = self.findings.checkpoint
        if not isinstance(checkpoint, StorePath):
            for error in file_sizes(checkpoint, foreign)[1]:
                self.findings.record(error)
        if foreign is not None:
            await verify_foreign(checkpoint, foreign, self.findings)
        else:
            await self._check_directory(checkpoint)

    async def _check_directory(self, directory: Path) -> None:
        """Check a checkpoint or an item, and everything below it."""
        try:
            checked = CheckedDirectory(directory)
        except CheckpointError as error:
            self.findings.record(error)
            self.findings.skip(directory, "directory, because its manifest cannot be read", 1)
            return
        if checked.manifest is None and has_lost_manifest(directory):
            what = "it is missing: nothing tells whether the other files are those that were saved"
            self.findings.record(damaged_file(directory / MANIFEST, what))
        await self._check_recorded(checked)
        self._check_items(checked)
        is_tree = holds_tree(directory)
        if is_tree:
            await verify_tree(checked, GLOBAL_TYPE_HANDLER_REGISTRY, self.findings)
        elif checked.manifest is None:
            self._check_plain_item(directory)
        self._check_process_databases(checked)
        for child in _parts(directory, is_tree=is_tree):
            await self._check_directory(child)

    async def _check_recorded(self, checked: CheckedDirectory) -> None:
        """Compare all files that a manifest records."""
        manifest = checked.manifest
        if manifest is None:
            documents = sum(entry.is_file() for entry in checked.path.iterdir())
            self.findings.skip(checked.path, "files without a manifest: read only", documents)
            return

        async def verify_file(name: str, nbytes: int) -> None:
            async with self.findings.limiter.reserve(min(nbytes, _MEASURE_BYTES)):
                try:
                    await asyncio.to_thread(checked.verify, name)
                except CheckpointError as error:
                    self.findings.record(error)
                except OSError as error:
                    if not is_damage(error):
                        raise
                    file = str(checked.path / name)
                    what = f"it cannot be read: {error}"
                    self.findings.add(what, file)
            self.findings.count(nbytes)

        await run_all(verify_file(name, record.nbytes) for name, record in manifest.files.items())
        for error in await asyncio.to_thread(checked.check_database_files):
            self.findings.record(error)
        added = await asyncio.to_thread(checked.unrecorded)
        others = [name for name in added if name not in _UNRECORDED]
        self.findings.skip(checked.path, "files that the manifest does not record", len(others))
        if manifest.database is None and OCDBT_MANIFEST in manifest.self_checked:
            what = "database of an earlier release, which did not record to which save data belongs"
            self.findings.skip(checked.path, what, 1)

    def _check_process_databases(self, checked: CheckedDirectory) -> None:
        """Read the indexes of the per-process databases, which remain after the merge."""
        manifest = checked.manifest
        if manifest is None or manifest.database is None:
            return
        for name in manifest.files:
            part, _, file = name.partition("/")
            if is_process_directory(part) and file == OCDBT_MANIFEST:
                try:
                    read_index(checked.inner(part))
                except CheckpointError as error:
                    self.findings.record(error)

    def _check_items(self, checked: CheckedDirectory) -> None:
        """Check that all items recorded for a step exist."""
        directory = checked.path
        if not (directory / STEP_METADATA).exists():
            return
        try:
            handlers = read_step(checked).item_handlers
        except CheckpointError as error:
            self.findings.record(error)
            return
        if isinstance(handlers, str):
            if handlers.endswith(_TREES) and not holds_tree(directory):
                self.findings.add(f"there is no tree in {directory}")
            return
        for name, handler in handlers.items() if isinstance(handlers, Mapping) else ():
            try:
                check_name(name, str(directory / STEP_METADATA))
            except UnsafePathError as error:
                self.findings.record(error)
                continue
            item = directory / name
            if not item.is_dir() and _is_dropped(checked, name):
                continue
            if not item.is_dir():
                self.findings.add(f"item {name!r} is missing", str(item))
            elif str(handler).endswith(_TREES) and not holds_tree(item):
                self.findings.add(f"there is no tree in item {name!r}")

    def _check_plain_item(self, directory: Path) -> None:
        """Parse a JSON item that has no checksums."""
        try:
            if handler_class_in(directory, None) is JsonHandler:
                JsonHandler().restore(directory)
        except CheckpointError as error:
            file = error.file if isinstance(error, CorruptionError) else None
            self.findings.add(str(error), file)
        except ValueError:
            return  # a step with several items, or an item of another kind


def _parts(directory: Path, *, is_tree: bool) -> list[Path]:
    """Return the directories to check separately; directories of leaves are not."""
    return [
        child
        for child in sorted(directory.iterdir())
        if child.is_dir()
        and _is_followed(child)
        and not (is_process_directory(child.name) or is_temporary_name(child.name))
        and (not is_tree or (child / MANIFEST).exists())
    ]


def _is_followed(directory: Path) -> bool:
    """Return whether a directory is not a link reported as damage."""
    if isinstance(directory, StorePath):
        return True
    return InnerFiles(directory.parent).is_followed(directory.name)


def _is_dropped(checked: CheckedDirectory, item: str) -> bool:
    """Return whether an item was deleted on purpose, and so left the manifest."""
    manifest = checked.manifest
    return manifest is not None and not any(n.startswith(f"{item}/") for n in manifest.files)


def file_sizes(path: Path, foreign: Format | None) -> tuple[list[int], list[UnsafePathError]]:
    """Return the sizes of a checkpoint's files, and an error for each that leads outside."""
    return sizes_below(path, allow_linked_files=allows_linked_files(foreign))
