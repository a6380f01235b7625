"""The steps of a run: list, keep and delete them; and metadata stored with the run as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import structs

from orbit_ckpt._src.checkpointer.handle import SaveHandle
from orbit_ckpt._src.checkpointer.options import AtomicityOptions
from orbit_ckpt._src.errors import CheckpointError, StorageError
from orbit_ckpt._src.formats.orbax.layout import is_tree
from orbit_ckpt._src.manager.coordinator import RunCoordinator
from orbit_ckpt._src.manager.garbage_collection import StepCollector, StepDeleter
from orbit_ckpt._src.manager.index import StepIndex
from orbit_ckpt._src.manager.options import CheckpointManagerOptions
from orbit_ckpt._src.manager.retention import RetentionPlan
from orbit_ckpt._src.manager.shared_index import IndexUpdate, SharedIndex
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.metadata.codec import decode_json
from orbit_ckpt._src.metadata.user_json import encode_user_json
from orbit_ckpt._src.metadata.values import RootMetadata
from orbit_ckpt._src.runtime.process import ForkSafeLock, reset_in_child
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.durable import make_directories
from orbit_ckpt._src.storage.inner_path import read_inner
from orbit_ckpt._src.storage.path import storage_errors

METADATA_ITEM = "metadata"
_FILE = "_ROOT_METADATA"
_OLD_FILE = "metadata"


class _Document(msgspec.Struct):
    internal_metadata: dict[str, object] | None = None
    custom_metadata: dict[str, object] | None = None
    custom: dict[str, object] | None = None  # the name in Orbax 0.11.0


def open_root(
    root: Path, custom: Mapping[str, object] | None, options: CheckpointManagerOptions
) -> None:
    """Create the directory of a run and write its metadata, as far as the options ask for it.

    Raises:
        StorageError: The storage refused.
        TypeError: The metadata is not JSON.
    """
    with storage_errors(root, "opening a run", "Check that it is a writable directory."):
        if options.create and not options.read_only:
            make_directories(root)
        if custom and options.save_root_metadata and not options.read_only:
            _write(root, custom)


def read_root_metadata(root: Path, given: Mapping[str, object]) -> RootMetadata:
    """Return the stored metadata of a run, else that given to the manager.

    Raises:
        FormatError: The stored metadata is damaged.
    """
    for name in (_FILE, _OLD_FILE):
        file = root / METADATA_ITEM / name
        if file.is_file():
            data = read_inner(root, f"{METADATA_ITEM}/{name}")
            where = str(file)  # the user's values may be `{1: "a", "1": "b"}`
            if name == _OLD_FILE:  # holds the user's object only
                return RootMetadata({}, decode_json(data, dict[str, object], where, repeats=True))
            found = decode_json(data, _Document, where, repeats=True)
            custom = found.custom_metadata or found.custom or {}
            return RootMetadata(found.internal_metadata or {}, custom)
    return RootMetadata(custom_metadata=given)


def _write(root: Path, custom: Mapping[str, object]) -> None:
    directory = root / METADATA_ITEM
    if (directory / _FILE).exists() or (directory / _OLD_FILE).exists():
        return
    text = encode_user_json({"internal_metadata": {}, "custom_metadata": dict(custom)})
    directory_of(root).create_document(METADATA_ITEM, _FILE, text)


class DeferredErrors:
    """Errors of background work, each raised once on every process by a later call.

    An error is recorded on the primary process, broadcast with the next update, and then raised. A
    single process raises it at once.
    """

    def __init__(self, *, is_broadcast: bool) -> None:
        """Make it.

        Args:
            is_broadcast: Whether the run has other processes.
        """
        self._is_broadcast = is_broadcast
        self._lock = ForkSafeLock()
        self._recorded: list[CheckpointError] = []
        self._sending: list[CheckpointError] = []
        self._ready: list[CheckpointError] = []
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Forget the errors, which belong to the parent."""
        self._recorded = []
        self._sending = []
        self._ready = []

    def record(self, message: str, cause: BaseException) -> None:
        """Record a failure."""
        kind = StorageError if isinstance(cause, OSError) else CheckpointError
        error = kind(message)
        error.__cause__ = cause
        with self._lock:
            (self._recorded if self._is_broadcast else self._ready).append(error)

    def add_to(self, update: IndexUpdate) -> IndexUpdate:
        """Add the recorded errors to an update; they are kept until it is delivered."""
        with self._lock:
            self._sending += self._recorded
            self._recorded = []
        if not self._sending:
            return update
        is_storage = any(isinstance(error, StorageError) for error in self._sending)
        problem = "\n".join(map(str, self._sending))
        return structs.replace(update, problem=problem, is_storage=is_storage)

    def deliver(self, update: IndexUpdate) -> None:
        """Make the errors of an update, which now reached all processes, ready to be raised."""
        if update.problem is None:
            return
        kind = StorageError if update.is_storage else CheckpointError
        with self._lock:
            self._sending = []
            self._ready.append(kind(update.problem))

    def pop(self) -> CheckpointError | None:
        """Return the errors since the last call as one, with the others in its notes."""
        with self._lock:
            errors, self._ready = self._ready, []
        for other in errors[1:]:
            errors[0].add_note(f"Also: {other}")
        return errors[0] if errors else None

    def raise_any(self) -> None:
        """Raise the errors since the last call, if any."""
        error = self.pop()
        if error is not None:
            raise error

    def attach_to(self, error: BaseException) -> None:
        """Add the errors since the last call as notes to an error that is raised anyway."""
        other = self.pop()
        if other is not None:
            error.add_note(str(other))


class _BegunStep(NamedTuple):
    info: StepInfo
    handle: SaveHandle


class StepStore:
    """The steps of a run, the rules that keep them, and the deletion of the others.

    Attributes:
        shared: The steps as all processes see them.
        errors: Errors of deletions, to be raised later.
    """

    def __init__(
        self, root: Path, coordinator: RunCoordinator, options: CheckpointManagerOptions
    ) -> None:
        """Make a store, which lists no step before `open`.

        Args:
            root: The run's directory.
            coordinator: The processes.
            options: What to keep, and how steps are named and deleted.

        Raises:
            ValueError: An option is impossible in an object store.
        """
        self._root = root
        self._coordinator = coordinator
        self._options = options
        rules = options.retention()
        self._deleter = StepDeleter(
            root, options.step_names(), todelete_subdir=options.todelete_subdir
        )
        index = StepIndex(
            root,
            options.step_names(),
            source=options.metrics_source,
            needs_marker=(options.atomicity_options or AtomicityOptions()).needs_marker,
            reads=False,
        )
        self.shared = SharedIndex(coordinator, index)
        self.errors = DeferredErrors(is_broadcast=not coordinator.is_alone)
        self._collector = StepCollector(
            self.shared.own,
            rules,
            self._deleter,
            self.errors.record,
            now=options.now,
            in_background=options.enable_background_delete,
        )
        self._begun: dict[int, _BegunStep] = {}
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Forget the saves in progress, which belong to the parent."""
        self._begun = {}

    def open(self, metadata: Mapping[str, object] | None) -> None:
        """Open the run: create it, clean up after crashed processes, list its steps.

        The primary process does the work while the others wait.

        Args:
            metadata: A JSON object to store with the run.

        Raises:
            StorageError: The directory cannot be created or read.
            ValueError: It is a checkpoint.
            ProcessFailedError: The primary process has failed.
        """

        def read() -> IndexUpdate:
            open_root(self._root, metadata, self._options)
            if not self._options.read_only:
                self._deleter.sweep(everything=self._options.cleanup_tmp_directories)
            self.shared.reload()
            if not self.shared.own.steps() and is_tree(self._root):
                raise ValueError(
                    f"directory: {self._root} is a checkpoint, not a run of them. Give the run's "
                    "directory; read this checkpoint with load(path), or with a Checkpointer."
                )
            if self._options.keep_old_temporary_steps:
                infos = self.shared.own.infos()
                self._collector.keep({info.step for info in infos if info.temporary})
            return self.pending_update()

        self.apply_update(self._coordinator.decide("CheckpointManager()", read, IndexUpdate))

    @property
    def view(self) -> StepIndex:
        """The steps as all processes see them."""
        return self.shared.view

    @property
    def own(self) -> StepIndex:
        """The steps as this process sees them, which may be ahead of the others."""
        return self.shared.own

    def pending_update(self, *, has_ended: bool = True) -> IndexUpdate:
        """Return the changes that the other processes do not know yet.

        Args:
            has_ended: Whether the pending save has ended.
        """
        update = self.shared.pending_update()
        return self.errors.add_to(structs.replace(update, has_ended=has_ended))

    def apply_update(self, update: IndexUpdate) -> None:
        """Apply the primary's update; errors in it are raised later."""
        self.shared.apply(update)
        self._begun = dict([] if update.has_ended else [*self._begun.items()][-1:])
        self.errors.deliver(update)

    def begin(self, step: int, handle: SaveHandle) -> None:
        """List a step that is being saved in the background.

        With several processes, it stays listed until all of them know that its save has ended.
        """
        self._begun[step] = _BegunStep(StepInfo(step, self._options.now()), handle)

    def infos(self) -> list[StepInfo]:
        """Return the durable steps and the one being saved, ascending."""
        is_alone = self._coordinator.is_alone
        begun = [one for one in self._begun.values() if not (is_alone and one.handle.done())]
        # read after the saves in progress, which end by adding their step
        listed = {info.step: info for info in self.view.infos()}
        found = {one.info.step: one.info for one in begun} | listed
        return [found[step] for step in sorted(found)]

    def steps(self) -> list[int]:
        """Return the numbers of `infos`."""
        return [info.step for info in self.infos()]

    def path(self, step: int) -> Path:
        """Return the directory of a step, which need not be durable yet.

        Raises:
            StepNotFoundError: The step does not exist.
        """
        begun = self._begun.get(step)
        return self.view.path(step) if begun is None else begun.handle.path

    def durable_path(self, step: int) -> Path:
        """Wait for a step if it is being saved, and return its directory.

        Raises:
            StepNotFoundError: The step does not exist, or its save has failed.
        """
        begun = self._begun.get(step)
        has_failed = begun is not None and begun.handle.exception() is not None
        return self.view.path(step) if has_failed else self.path(step)

    def await_step(self, step: int | None) -> None:
        """Wait until a step is durable or its save has failed, without raising that error.

        Args:
            step: Its number; None for every step that is being saved.
        """
        for number, begun in list(self._begun.items()):
            if step in (None, number):
                begun.handle.exception()

    def commit(self, step: int, path: Path, metrics: Mapping[str, object] | None) -> None:
        """List a durable step, then delete the steps that it makes superfluous."""
        try:
            self.own.add(step, path, metrics)
        except OSError as error:
            what = f"Step {step} is saved but not listed: {error}. Call reload()."
            self.errors.record(what, error)
        self._collector.collect(just_saved=step)

    def await_deletion(self, path: Path) -> None:
        """Wait until no deletion is in progress at a path that a save is about to write."""
        self._collector.await_deletion(path)

    def wait(self) -> None:
        """Wait for all deletions."""
        self._collector.wait()

    def plan(self) -> RetentionPlan:
        """Return which steps the rules keep and delete now, and why."""
        return self._collector.plan()

    def delete(self, step: int) -> None:
        """Delete a step, pinned or not.

        Raises:
            StepNotFoundError: The step does not exist.
        """
        self._collector.delete(step)

    def set_pinned(self, step: int, *, pinned: bool) -> None:
        """Pin or unpin a step; see `CheckpointManager.pin`."""
        self._collector.set_pinned(step, pinned=pinned)

    def close(self) -> None:
        """Release the thread; later deletions run at once."""
        self._collector.close()
