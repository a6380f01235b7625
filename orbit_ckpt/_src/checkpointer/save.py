"""One save, at once or in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, wait
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, cast

import jax
from msgspec import Struct

from orbit_ckpt._src.checkpointer.options import SessionOptions
from orbit_ckpt._src.checkpointer.telemetry import report_save
from orbit_ckpt._src.checkpointer.transaction import SaveSession
from orbit_ckpt._src.errors import CheckpointError, CheckpointExistsError
from orbit_ckpt._src.items.base import CheckpointArgs, CheckpointHandler, typestr_of
from orbit_ckpt._src.items.phases import stage_item
from orbit_ckpt._src.metadata.step_details import StepDetails
from orbit_ckpt._src.runtime.commit import Commit, ItemToSave, Progress
from orbit_ckpt._src.runtime.forking import reset_in_child
from orbit_ckpt._src.runtime.loop import is_exiting, run_in_background, run_sync
from orbit_ckpt._src.runtime.process import acting_as
from orbit_ckpt._src.storage.atomic import AtomicityMode
from orbit_ckpt._src.storage.path import storage_errors
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.type_handlers.lazy import LazyArray

_logger = logging.getLogger(__name__)

_ADVICE = "Nothing was left behind; check the free space and permissions there."


_GRACE_S = 15.0
"""How much longer to wait for a save than its processes for each other: their error says more."""


_reporting: ContextVar[Commit | None] = ContextVar("orbit_ckpt_reporting", default=None)
"""The save whose callback is running in this thread."""


class SaveHandle:
    """A save that goes on in the background; can be awaited too."""

    def __init__(
        self,
        path: Path,
        step: int | None,
        outcome: Future[None],
        commit: Commit,
        *,
        is_alone: bool = True,
    ) -> None:
        self.grace_s = 0.0 if is_alone else _GRACE_S
        self.is_inherited = False
        """Whether it was in progress in another process when that forked this one."""
        self._path = path
        self._step = step
        self._outcome = outcome
        self._commit = commit
        self._ended: BaseException | Literal[True] | None = None
        outcome.add_done_callback(self._end)
        reset_in_child(self)

    def _end(self, outcome: Future[None]) -> None:
        self._ended = outcome.exception() or True

    def after_fork_in_child(self) -> None:
        """Wait for nothing that only the parent does."""
        if self._ended is None:
            self.is_inherited = True
            self._ended = CheckpointError(
                f"{self._path} is being saved by process {os.getppid()}, which forked this one "
                f"({os.getpid()}). Only that process can wait for it; wait there before the fork."
            )
        outcome = Future[None]()  # the lock of the other one may be held for ever
        if self._ended is True:
            outcome.set_result(None)
        else:
            outcome.set_exception(self._ended)
        self._outcome = outcome

    @property
    def path(self) -> Path:
        """Where the checkpoint will be."""
        return self._path

    @property
    def step(self) -> int | None:
        """Its step, None if it has none."""
        return self._step

    @property
    def progress(self) -> Progress:
        """How much has been written."""
        return self._commit.progress

    def done(self) -> bool:
        """Whether the save has ended, well or not."""
        return self._outcome.done()

    def result(self, timeout: float | None = None) -> None:
        """Wait until the checkpoint is durable.

        Args:
            timeout: Most seconds to wait.

        Raises:
            TimeoutError: The save goes on.
            CheckpointError: What it failed with; nothing was left behind.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the save has ended; return what it failed with, None if it did not.

        Its own callback does not wait: the checkpoint is durable then.

        Raises:
            TimeoutError: The save goes on after `timeout` seconds.
        """
        if _reporting.get() is self._commit:
            return None
        if wait([self._outcome], timeout).not_done:
            done = self.progress
            raise TimeoutError(
                f"{self._path}: the save goes on after {timeout} seconds; {done.nbytes} of "
                f"{done.total_nbytes} bytes are written"
            )
        return self._outcome.exception()

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.wrap_future(self._outcome).__await__()

    def __repr__(self) -> str:
        state = "saving" if not self.done() else "failed" if self.exception() else "saved"
        return f"SaveHandle({str(self._path)!r}, {state})"


def handled_item(handler: CheckpointHandler, args: Mapping[str, object]) -> ItemToSave:
    """Return an item that a handler saves, from the arguments of the handler's `save`."""

    async def stage(directory: Path, copy: bool) -> Commit:
        return await stage_item(handler, directory, args, copy=copy)

    return ItemToSave(stage, typestr_of(handler), args)


class SaveRequest(Struct, frozen=True):
    """One save to do.

    Attributes:
        path: Where.
        item: What to save.
        overwrite: Whether to replace an existing checkpoint.
        custom_metadata: A JSON object to keep with the checkpoint.
        step: Which step it is, for messages.
        details: What to record of a step besides.
        when_done: Called once the checkpoint is durable; what it raises is logged only.
    """

    path: Path
    item: ItemToSave
    overwrite: bool = False
    custom_metadata: Mapping[str, object] | None = None
    step: int | None = None
    details: StepDetails | None = None
    when_done: Callable[[], object] | None = None

    def open(self, options: SessionOptions) -> SaveSession:
        """Return a session that writes it.

        Raises:
            TypeError: The custom metadata are not JSON.
        """
        return SaveSession(
            self.path,
            overwrite=self.overwrite,
            options=options,
            custom_metadata=self.custom_metadata,
            details=self.details,
        )


def save_now(request: SaveRequest, options: SessionOptions) -> None:
    """Save; when this returns the checkpoint is durable.

    Raises:
        CheckpointExistsError: The path exists and is not to be overwritten.
        CheckpointError: What the handler raises; nothing was left behind.
    """
    began = time.monotonic()
    session = _open(request, options)

    async def both_phases() -> Commit:
        session.set_phase("staging")
        commit = await request.item.stage(session.directory, False)
        await session.write(commit)
        return commit

    with storage_errors(request.path, "saving", _ADVICE), session, acting_as(session.process):
        commit = run_sync(both_phases())
        session.commit(commit.recorded_as or request.item.typestr, commit.finalize)
    _report(request.path, began, request.when_done)


def begin_save(request: SaveRequest, options: SessionOptions) -> SaveHandle:
    """Begin a save; return once nothing of it depends on the caller's data.

    While the interpreter ends, the save ends before this returns; see `run_in_background`.

    Raises:
        CheckpointExistsError: The path exists and is not to be overwritten.
        CheckpointError: What the handler raises; nothing was left behind.
    """
    began = time.monotonic()
    # what goes on in the background must not hold the request, which holds the caller's arrays
    path, step, when_done = request.path, request.step, request.when_done
    typestr = request.item.typestr
    session = _open(request, options)
    with contextlib.ExitStack() as stack:
        with storage_errors(path, "saving", _ADVICE), acting_as(session.process):
            stack.enter_context(session)
            session.set_phase("staging")
            commit = run_sync(request.item.stage(session.directory, True))
        opened = stack.pop_all()

    async def finish() -> None:
        try:
            with storage_errors(path, "saving", _ADVICE), opened:
                await session.write(commit)
                recorded = commit.recorded_as or typestr
                await asyncio.to_thread(session.commit, recorded, commit.finalize)
        except BaseException as error:  # raised again: perhaps nobody asks for it
            if is_exiting():  # nobody can, and it is printed where the thread ends
                error.add_note(f"Saving {path} in the background failed")
            else:
                _logger.exception("Saving %s in the background failed", path)
            raise
        await asyncio.to_thread(_report, path, began, when_done, commit)

    with acting_as(session.process):
        outcome = run_in_background(finish())
    return SaveHandle(path, step, outcome, commit, is_alone=session.process.is_alone)


def decline_save(path: Path, error: BaseException, options: SessionOptions) -> None:
    """Let other processes know that this one does not come to a save, and why.

    Raises:
        ProcessTimeoutError: The primary process does not come either.
    """
    SaveSession(path, overwrite=False, options=options).decline(error)


def _open(request: SaveRequest, options: SessionOptions) -> SaveSession:
    """Return a session; what is wrong already is told to other processes.

    Raises:
        CheckpointExistsError: It would destroy what it is yet to read.
        TypeError: The custom metadata are not JSON.
    """
    try:
        _check_not_read(request, options)
        return request.open(options)
    except Exception as error:  # raised again once the others know
        decline_save(request.path, error, options)
        raise


def _check_not_read(request: SaveRequest, options: SessionOptions) -> None:
    """Check that a save does not destroy what it is yet to read.

    Raises:
        CheckpointExistsError: In marker mode or in a store, where room is made first, it would
            overwrite the checkpoint that some of its lazy arrays are in.
    """
    in_place = options.atomicity.mode is AtomicityMode.COMMIT_FILE
    if not request.overwrite or not (in_place or isinstance(request.path, StorePath)):
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
    """Yield the lazy arrays in what is saved: arguments of items and their trees."""
    if isinstance(value, Mapping):
        for child in cast(Mapping[object, object], value).values():
            yield from _lazy_arrays_in(child)
    elif isinstance(value, CheckpointArgs):
        yield from _lazy_arrays_in(vars(value))
    else:
        yield from (leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, LazyArray))


def _report(
    path: Path, began: float, when_done: Callable[[], object] | None, commit: Commit | None = None
) -> None:
    report_save(path, began, in_background=commit is not None)
    if commit is not None:
        _reporting.set(commit)  # in the context of this thread, which ends with it
    if when_done is None:
        return
    try:
        when_done()
    except Exception:  # the step is durable, whatever a user's callback does
        _logger.exception("%s is saved, but %r failed", path, when_done)
