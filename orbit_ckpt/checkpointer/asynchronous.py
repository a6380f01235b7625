"""Saves that go on in the background.

What the caller may change, delete or donate is copied before a save returns; the rest happens on
another thread. The checkpoint appears when everything is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from orbit_ckpt.checkpointer.checkpointer import Checkpointer
from orbit_ckpt.checkpointer.options import (
    AsyncOptions,
    AtomicityOptions,
    FileOptions,
    SessionOptions,
)
from orbit_ckpt.checkpointer.session import SaveSession
from orbit_ckpt.errors import BackgroundSaveError
from orbit_ckpt.items.base import CheckpointArgs, CheckpointHandler, stage_item, typestr_of
from orbit_ckpt.items.pytree import PyTreeMetadataOptions
from orbit_ckpt.items.standard import StandardHandler, StandardRestoreArgs, StandardSaveArgs
from orbit_ckpt.runtime.commit import Commit, Progress
from orbit_ckpt.runtime.loop import run_in_background, run_sync
from orbit_ckpt.storage.path import resolve_path, storage_errors

_logger = logging.getLogger(__name__)


class SaveHandle:
    """A save that goes on in the background; can be awaited too."""

    def __init__(self, path: Path, step: int | None, outcome: Future[None], commit: Commit) -> None:
        self._path = path
        self._step = step
        self._outcome = outcome
        self._commit = commit

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

        Raises:
            TimeoutError: The save goes on after `timeout` seconds.
        """
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


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """One save to begin.

    Attributes:
        path: Where.
        args: Arguments of the handler's `save`.
        overwrite: Whether to replace an existing checkpoint.
        custom_metadata: A JSON object to keep with the checkpoint.
        step: Which step it is, for messages.
        when_done: Called once the checkpoint is durable.
    """

    path: Path
    args: Mapping[str, object]
    overwrite: bool = False
    custom_metadata: Mapping[str, object] | None = None
    step: int | None = None
    when_done: Callable[[], object] | None = None


def begin_save(
    handler: CheckpointHandler, request: SaveRequest, options: SessionOptions
) -> SaveHandle:
    """Begin a save; return once nothing of it depends on the caller's data.

    Raises:
        CheckpointExistsError: The path exists and is not to be overwritten.
        CheckpointError: What the handler raises; nothing was left behind.
    """
    path = request.path
    session = SaveSession(
        path,
        overwrite=request.overwrite,
        options=options,
        custom_metadata=request.custom_metadata,
    )
    advice = "Nothing was left behind; check the free space and permissions there."
    with contextlib.ExitStack() as stack:
        with storage_errors(path, "saving", advice):
            stack.enter_context(session)
            commit = run_sync(stage_item(handler, session.directory, request.args, copy=True))
        opened = stack.pop_all()

    async def finish() -> None:
        try:
            with storage_errors(path, "saving", advice), opened:
                await commit.run()
                await asyncio.to_thread(commit.finalize)
                await asyncio.to_thread(session.commit, commit.recorded_as or typestr_of(handler))
        except BaseException:
            _logger.exception("Saving %s in the background failed", path)
            raise
        _logger.info("Saved %s", path)
        if request.when_done is not None:
            _call(request.when_done, path)

    return SaveHandle(path, request.step, run_in_background(finish()), commit)


def _call(callback: Callable[[], object], path: Path) -> None:
    try:
        callback()
    except Exception:
        _logger.exception("%s is saved, but post_finalization_callback %r failed", path, callback)


class AsyncCheckpointer(Checkpointer):
    """A `Checkpointer` whose saves go on in the background, one at a time.

    An error of one is raised once, by whichever method is called next; a save is begun all the
    same.
    """

    def __init__(
        self,
        handler: CheckpointHandler,
        timeout_secs: float | None = None,
        *,
        async_options: AsyncOptions | None = None,
        file_options: FileOptions | None = None,
        atomicity_options: AtomicityOptions | None = None,
    ) -> None:
        """Make a checkpointer.

        Args:
            handler: Saves and restores the item.
            timeout_secs: Most seconds to wait for a save, instead of that in `async_options`.
            async_options: How saves go on in the background.
            file_options: How files are made.
            atomicity_options: How a checkpoint becomes visible.
        """
        super().__init__(handler, file_options=file_options, atomicity_options=atomicity_options)
        options = async_options or AsyncOptions()
        self._timeout_s = options.timeout_secs if timeout_secs is None else timeout_secs
        self._when_done = options.post_finalization_callback
        self._saving: SaveHandle | None = None

    def save(
        self,
        directory: str | os.PathLike[str],
        *args: object,
        force: bool = False,
        custom_metadata: Mapping[str, object] | None = None,
        **kwargs: object,
    ) -> None:
        """Begin to save a checkpoint, once the save before has ended.

        When this returns, the item may be changed, deleted or donated. For the arguments see
        `Checkpointer.save`.

        Raises:
            BackgroundSaveError: The save before has failed; this one goes on.
            CheckpointExistsError: The directory exists and `force` is not set.
            CheckpointError: What the handler raises; nothing was left behind.
        """
        request = SaveRequest(
            resolve_path(directory),
            self._make_args(0, args, kwargs),
            overwrite=force,
            custom_metadata=custom_metadata,
            when_done=self._when_done,
        )
        failed = self._end_of_last()
        try:
            self._saving = begin_save(self.handler, request, self._options)
        except Exception as error:  # raised again
            if failed is not None:
                error.add_note(str(failed))
            raise
        if failed is not None:
            raise failed

    def wait_until_finished(self) -> None:
        """Wait until no save goes on.

        Raises:
            BackgroundSaveError: The save has failed and nobody has been told.
            TimeoutError: It goes on for longer than `timeout_secs`.
        """
        failed = self._end_of_last()
        if failed is not None:
            raise failed

    def check_for_errors(self) -> None:
        """Raise what a save has failed with, without waiting for one that goes on.

        Raises:
            BackgroundSaveError: The save has failed and nobody has been told.
        """
        if self._saving is not None and self._saving.done():
            self.wait_until_finished()

    def is_saving_in_progress(self) -> bool:
        """Whether a save goes on."""
        return self._saving is not None and not self._saving.done()

    def restore(
        self, directory: str | os.PathLike[str], *args: object, **kwargs: object
    ) -> Any:  # the item, whatever it is
        """Restore a checkpoint once the save before has ended; see `Checkpointer.restore`."""
        self.wait_until_finished()
        return super().restore(directory, *args, **kwargs)

    def close(self) -> None:
        """Wait until no save goes on and give up resources.

        Raises:
            BackgroundSaveError: The save has failed and nobody has been told.
        """
        try:
            self.wait_until_finished()
        finally:
            super().close()

    def _end_of_last(self) -> BackgroundSaveError | None:
        """Wait for the last save; return what it failed with, the first time."""
        handle = self._saving
        if handle is None:
            return None
        error = handle.exception(self._timeout_s)
        self._saving = None
        return None if error is None else background_error(handle, error)


def background_error(handle: SaveHandle, cause: BaseException) -> BackgroundSaveError:
    """Return the error that tells of a save that failed in the background."""
    what = f"step {handle.step} ({handle.path})" if handle.step is not None else str(handle.path)
    error = BackgroundSaveError(
        f"The save of {what} failed in the background: {cause}",
        path=str(handle.path),
        step=handle.step,
    )
    error.__cause__ = cause
    return error


class StandardCheckpointer(AsyncCheckpointer):
    """An `AsyncCheckpointer` of pytrees that takes trees instead of argument objects."""

    def __init__(
        self,
        *,
        async_options: AsyncOptions | None = None,
        file_options: FileOptions | None = None,
        atomicity_options: AtomicityOptions | None = None,
        pytree_metadata_options: PyTreeMetadataOptions | None = None,
        **handler_options: Any,
    ) -> None:
        """Make a checkpointer; further arguments are those of `StandardHandler`."""
        if pytree_metadata_options is not None:
            handler_options["pytree_metadata_options"] = pytree_metadata_options
        super().__init__(
            StandardHandler(**handler_options),
            async_options=async_options,
            file_options=file_options,
            atomicity_options=atomicity_options,
        )

    def save(  # pyright: ignore[reportIncompatibleMethodOverride] - Orbax's signature
        self,
        directory: str | os.PathLike[str],
        state: object,
        *,
        save_args: object = None,
        force: bool = False,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Begin to save a tree; see `AsyncCheckpointer.save`."""
        if isinstance(state, CheckpointArgs):
            args = cast(StandardSaveArgs, state)
        else:
            args = StandardSaveArgs(state, save_args)
        super().save(directory, args=args, force=force, custom_metadata=custom_metadata)

    def restore(  # pyright: ignore[reportIncompatibleMethodOverride] - Orbax's signature
        self, directory: str | os.PathLike[str], target: object = None, *, strict: bool = True
    ) -> Any:  # a tree of any type
        """Restore a tree like a target; see `StandardHandler.restore`."""
        if isinstance(target, CheckpointArgs):
            args = cast(StandardRestoreArgs, target)
        else:
            args = StandardRestoreArgs(target, strict=strict)
        return super().restore(directory, args=args)
