"""Open a run: make its directory, remove what the dead have left there, list its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orbit_ckpt._src.checkpointer.options import AtomicityOptions
from orbit_ckpt._src.formats.orbax_layout import is_tree
from orbit_ckpt._src.items.composite import CompositeHandler
from orbit_ckpt._src.manager.council import Council
from orbit_ckpt._src.manager.deletion import StepDeleter
from orbit_ckpt._src.manager.index import StepIndex
from orbit_ckpt._src.manager.keeper import StepKeeper
from orbit_ckpt._src.manager.options import CheckpointManagerOptions
from orbit_ckpt._src.manager.root_metadata import open_root
from orbit_ckpt._src.manager.saver import StepSaver
from orbit_ckpt._src.manager.shared_index import News, SharedIndex


@dataclass(frozen=True, slots=True)
class OpenRun:
    """The parts of a run that a manager puts together.

    Attributes:
        shared: Its steps.
        keeper: Deletes them.
        saver: Saves them.
    """

    shared: SharedIndex
    keeper: StepKeeper
    saver: StepSaver


def open_run(
    root: Path,
    council: Council,
    options: CheckpointManagerOptions,
    handler: CompositeHandler,
    metadata: Mapping[str, object] | None,
) -> OpenRun:
    """Open a run; of several processes the primary one does, and the others wait for it.

    Args:
        root: Its directory.
        council: The processes.
        options: What the manager was made with.
        handler: Saves the items of a step.
        metadata: A JSON object to keep with the run.

    Raises:
        StorageError: The directory cannot be made or read.
        ProcessFailedError: The primary process has failed.
    """
    names = options.step_names()
    rules = options.retention()
    deleter = StepDeleter(root, names, todelete_subdir=options.todelete_subdir)
    index = StepIndex(
        root,
        names,
        source=options.metrics_source,
        needs_marker=(options.atomicity_options or AtomicityOptions()).needs_marker,
        reads=False,
    )
    shared = SharedIndex(council, index)

    def read() -> News:
        open_root(root, metadata, options)
        if not options.read_only:
            deleter.sweep(everything=options.cleanup_tmp_directories)
        index.reload()
        if not index.steps() and is_tree(root):
            raise ValueError(
                f"directory: {root} is a checkpoint, not a run of them. Give the run's directory; "
                "what is here is read with load(path), or with a Checkpointer."
            )
        return shared.news()

    shared.follow(council.ask("CheckpointManager()", read, News))
    own = shared.own
    keeper = StepKeeper(own, rules, deleter, in_background=options.enable_background_delete)
    return OpenRun(shared, keeper, StepSaver(council, handler, own, shared, keeper, options))
