"""Saves of a training loop with a checkpoint manager, which orbit_ckpt and Orbax have alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contenders import Settings


class ManagedSaves:
    """Saves steps in the background and keeps the last one.

    Args:
        library: `orbit_ckpt` or `orbax.checkpoint`.
        directory: Directory of the run.
        settings: Settings of the contender.
    """

    def __init__(self, library: Any, directory: Path, settings: Settings) -> None:
        self._args = library.args
        self._manager = library.CheckpointManager(
            directory,
            options=library.CheckpointManagerOptions(max_to_keep=1),
            item_handlers=library.PyTreeCheckpointHandler(
                use_ocdbt=True, use_compression=settings.compression
            ),
        )

    def save(self, step: int, tree: object) -> None:
        """Start a save; first wait for the previous one."""
        self._manager.save(step, args=self._args.PyTreeSave(tree))

    def wait(self) -> None:
        """Wait for the last save."""
        self._manager.wait_until_finished()

    def load(self, step: int, like: object) -> object:
        """Load a step."""
        return self._manager.restore(step, args=self._args.PyTreeRestore(like))

    def close(self) -> None:
        """Wait for the last save and release the manager."""
        self._manager.close()
