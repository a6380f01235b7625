"""One save, in the foreground or the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

import jax
from msgspec import Struct

from orbit_ckpt._src.arrays.snapshot import Snapshots
from orbit_ckpt._src.checkpointer.handle import SaveHandle, note_reporting
from orbit_ckpt._src.checkpointer.options import SessionOptions
from orbit_ckpt._src.checkpointer.telemetry import report_save
from orbit_ckpt._src.checkpointer.transaction import SaveSession
from orbit_ckpt._src.errors import CheckpointError, CheckpointExistsError
from orbit_ckpt._src.guards import is_mapping
from orbit_ckpt._src.items.arguments import CheckpointArgs
from orbit_ckpt._src.items.base import CheckpointHandler, typestr_of
from orbit_ckpt._src.items.phases import stage_item
from orbit_ckpt._src.metadata.step_details import RecordedRule, StepDetails
from orbit_ckpt._src.progress import Progress as ReportProgress
from orbit_ckpt._src.progress import reporting
from orbit_ckpt._src.runtime.cancellation import Cancellation
from orbit_ckpt._src.runtime.commit import Commit, ItemToSave, Progress
from orbit_ckpt._src.runtime.loop import run_in_background, run_sync
from orbit_ckpt._src.runtime.threads import is_exiting
from orbit_ckpt._src.storage.atomic import AtomicityMode
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.incremental import Base, ReuseCounter, saving_from
from orbit_ckpt._src.storage.path import storage_errors
from orbit_ckpt._src.type_handlers.lazy import LazyArray

_logger = logging.getLogger(__name__)

_ADVICE = "Nothing was left behind; check the free space and permissions there."


def handled_item(handler: CheckpointHandler, args: Mapping[str, object]) -> ItemToSave:
    """Build the item that a handler saves from the arguments of the handler's `save`."""

    async def stage(directory: Path, copy: bool) -> Commit:
        return await stage_item(handler, directory, args, copy=copy)

    return ItemToSave(stage, typestr_of(handler), args)


class SaveRequest(Struct, frozen=True):
    """One save to perform.

    Attributes:
        path: Where to save.
        item: What to save.
        overwrite: Whether to replace an existing checkpoint.
        custom_metadata: A JSON object to store with the checkpoint.
        step: Its step, for messages.
        details: Further facts to record about a step.
        rules: The retention rules to record with a step.
        waited_s: How long this save waited for the previous one, None if not known.
        when_done: Called once the checkpoint is durable; its exceptions are only logged.
        record: Called likewise, with the bytes written and the seconds taken.
        is_item: Whether the path is an item to add to the checkpoint that it is in.
        is_incremental: Whether chunks that `base` holds are not written again.
        base: An earlier checkpoint; None without one.
        full_every: See `Base`.
        progress: What to report the progress of a save in the foreground to; see `reporting`.
    """

    path: Path
    item: ItemToSave
    overwrite: bool = False
    custom_metadata: Mapping[str, object] | None = None
    step: int | None = None
    details: StepDetails | None = None
    rules: Sequence[RecordedRule] = ()
    waited_s: float | None = None
    when_done: Callable[[], object] | None = None
    record: Callable[[int, float], object] | None = None
    is_item: bool = False
    is_incremental: bool = False
    base: Path | None = None
    full_every: int | None = None
    progress: bool | ReportProgress | None = None

    def from_base(self, root: Path, reused: ReuseCounter) -> Base | None:
        """Return what the save refers to.

        Args:
            root: The directory that it writes to, once all processes agree on it.
            reused: Sums what it reuses.
        """
        return Base(self.base, root, self.full_every, reused) if self.is_incremental else None

    def open(self, options: SessionOptions) -> SaveSession:
        """Return a session that writes the checkpoint.

        Raises:
            TypeError: The custom metadata is not JSON.
        """
        return SaveSession(
            self.path,
            overwrite=self.overwrite,
            options=options,
            custom_metadata=self.custom_metadata,
            details=self.details,
            rules=self.rules,
            waited_s=self.waited_s,
            is_item=self.is_item,
        )


def save_now(request: SaveRequest, options: SessionOptions) -> None:
    """Save; the checkpoint is durable when this returns.

    Raises:
        CheckpointExistsError: The path exists and must not be overwritten.
        CheckpointError: The handler failed; nothing was left behind.
    """
    began = time.monotonic()
    session = _open(request, options)
    reused = ReuseCounter()

    with reporting(request.progress, "Saving") as report:

        async def both_phases() -> Commit:
            session.set_phase("staging")
            with saving_from(request.from_base(session.directory, reused)):
                commit = await request.item.stage(session.directory, False)
            if report is not None:
                report(lambda: _bytes_of(commit.progress))
            await session.write(commit)
            return commit

        with storage_errors(request.path, "saving", _ADVICE), session, session.called():
            commit = run_sync(both_phases())
            session.commit(commit.recorded_as or request.item.typestr, commit.finalize)
    nbytes = commit.progress.nbytes
    shared = reused.now().referred
    report_save(request.path, began, nbytes=nbytes, blocked_s=None, shared=shared)
    _call(request.path, request.when_done)
    _call(request.path, request.record, nbytes, time.monotonic() - began)


def begin_save(
    request: SaveRequest, options: SessionOptions, snapshots: Snapshots | None = None
) -> SaveHandle:
    """Start a save; return once it no longer depends on the caller's data.

    At interpreter exit the save ends before this returns; see `run_in_background`.

    Args:
        request: What to save.
        options: Options of the session.
        snapshots: Takes the arrays from the caller; None for one of this save alone.

    Raises:
        CheckpointExistsError: The path exists and must not be overwritten.
        CheckpointError: The handler failed; nothing was left behind.
    """
    began = time.monotonic()
    # the background thread must not hold the request, which holds the caller's arrays
    path, step, when_done, record = request.path, request.step, request.when_done, request.record
    snapshots = snapshots or Snapshots()
    typestr = request.item.typestr
    session = _open(request, options)
    reused = ReuseCounter()
    with contextlib.ExitStack() as stack:
        with storage_errors(path, "saving", _ADVICE), session.called():
            stack.enter_context(session)
            session.set_phase("staging")
            base = request.from_base(session.directory, reused)
            with snapshots.taking(), saving_from(base):
                commit = run_sync(request.item.stage(session.directory, True))
        opened = stack.pop_all()

    cancellation = Cancellation()

    async def finish() -> None:
        try:
            with storage_errors(path, "saving", _ADVICE), opened:
                with _cancelled(path):
                    cancellation.open()
                    await session.write(commit)
                    cancellation.close()
                recorded = commit.recorded_as or typestr
                await asyncio.to_thread(session.commit, recorded, commit.finalize)
        except BaseException as error:  # raised again, though perhaps nobody retrieves it
            if cancellation.is_requested:
                _logger.info("Saving %s was cancelled", path)
            elif is_exiting():  # no caller will see the error; the thread prints it when it ends
                error.add_note(f"Saving {path} in the background failed")
            else:
                _logger.exception("Saving %s in the background failed", path)
            raise
        finally:
            snapshots.end_save()
        await asyncio.to_thread(report)

    def report() -> None:
        nbytes = commit.progress.nbytes
        shared = reused.now().referred
        report_save(path, began, nbytes=nbytes, blocked_s=blocked_s, shared=shared)
        note_reporting(commit)
        _call(path, when_done)
        _call(path, record, nbytes, time.monotonic() - began)

    blocked_s = session.release_caller()
    with session.called():
        outcome = run_in_background(finish())
    is_alone = session.process.is_alone
    return SaveHandle(path, step, outcome, commit, cancellation, is_alone=is_alone, reused=reused)


@contextlib.contextmanager
def _cancelled(path: Path) -> Generator[None]:
    """Convert a cancellation to a `CheckpointError`, so that the session waits for the writers."""
    try:
        yield
    except asyncio.CancelledError as error:
        raise CheckpointError(
            f"The save of {path} was cancelled; nothing was left behind."
        ) from error


def decline_save(path: Path, error: BaseException, options: SessionOptions) -> None:
    """Tell other processes that this one does not join a save, and why.

    Raises:
        ProcessTimeoutError: The primary process does not join either.
    """
    SaveSession(path, overwrite=False, options=options).decline(error)


def _open(request: SaveRequest, options: SessionOptions) -> SaveSession:
    """Return a session; report to other processes an error found before it starts.

    Raises:
        CheckpointExistsError: The save would destroy data that it has yet to read.
        TypeError: The custom metadata is not JSON.
    """
    try:
        _check_not_read(request, options)
        return request.open(options)
    except Exception as error:  # raised again once the other processes know
        decline_save(request.path, error, options)
        raise


def _check_not_read(request: SaveRequest, options: SessionOptions) -> None:
    """Check that a save does not destroy data that it has yet to read.

    Raises:
        CheckpointExistsError: In marker mode or in a store, where the old checkpoint is removed
            first, the save would overwrite the checkpoint of some of its lazy arrays.
    """
    in_place = options.atomicity.mode is AtomicityMode.COMMIT_FILE
    if not request.overwrite or not (in_place or not directory_of(request.path).has_rename):
        return
    how = "in marker mode" if in_place else "in a store"
    place = request.path.resolve()
    for lazy in _lazy_arrays_in(request.item.values):
        source = lazy.leaf.directory.path.resolve()
        if place == source or place in source.parents:
            raise CheckpointExistsError(
                f"{request.path} cannot be overwritten {how} by {lazy!r}, which is yet to be "
                "read from there: the old checkpoint is removed first. Save to another path, "
                "or call get() before."
            )


def _lazy_arrays_in(value: object) -> Iterator[LazyArray]:
    """Yield the lazy arrays in the arguments of items and their trees."""
    if is_mapping(value):
        for child in value.values():
            yield from _lazy_arrays_in(child)
    elif isinstance(value, CheckpointArgs):
        yield from _lazy_arrays_in(vars(value))
    else:
        yield from (leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, LazyArray))


def _bytes_of(progress: Progress) -> tuple[int, int]:
    return progress.nbytes, progress.total_nbytes


def _call(path: Path, function: Callable[..., object] | None, *args: object) -> None:
    """Call a function after a save; the step is durable whatever it does."""
    try:
        _ = function and function(*args)
    except Exception:  # of a user's function
        _logger.exception("%s is saved, but %r failed", path, function)
