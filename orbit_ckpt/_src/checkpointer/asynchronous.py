"""Background saves.

A save returns once data that the caller may change, delete or donate is copied; the rest happens on
another thread. The checkpoint appears when everything is durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast, overload

from typing_extensions import override

from orbit_ckpt._src.checkpointer.checkpointer import Checkpointer, warn_of_context
from orbit_ckpt._src.checkpointer.load_options import AbstractTree
from orbit_ckpt._src.checkpointer.options import (
    AsyncOptions,
    AtomicityOptions,
    FileOptions,
    MultiprocessingOptions,
    check_options,
)
from orbit_ckpt._src.checkpointer.pending_save import PendingSave
from orbit_ckpt._src.checkpointer.save import SaveRequest, begin_save, handled_item
from orbit_ckpt._src.items.arguments import CheckpointArgs
from orbit_ckpt._src.items.base import CheckpointHandler
from orbit_ckpt._src.items.pytree import PyTreeMetadataOptions
from orbit_ckpt._src.items.standard import StandardHandler, StandardRestoreArgs, StandardSaveArgs
from orbit_ckpt._src.runtime.checks import as_flag
from orbit_ckpt._src.storage.path import PathLike, resolve_path

T = TypeVar("T")


class AsyncCheckpointer(Checkpointer):
    """A `Checkpointer` that saves in the background, one save at a time.

    An error is raised once, by the next method called; if that is `save`, it still starts its own
    save.
    """

    def __init__(  # noqa: PLR0913 - Orbax's signature
        self,
        handler: CheckpointHandler,
        timeout_secs: float | None = None,
        *,
        async_options: AsyncOptions | None = None,
        file_options: FileOptions | None = None,
        atomicity_options: AtomicityOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
        checkpoint_metadata_store: object = None,
        temporary_path_class: object = None,
    ) -> None:
        """Make a checkpointer.

        Args:
            handler: Saves and restores the item.
            timeout_secs: Longest wait for a save in seconds, instead of that in `async_options`.
            async_options: Options of background saves.
            file_options: Permissions and other properties of files.
            atomicity_options: How a checkpoint becomes visible.
            multiprocessing_options: How processes save together.
            checkpoint_metadata_store: See `Checkpointer`.
            temporary_path_class: See `Checkpointer`.
        """
        check_options(async_options=async_options, multiprocessing_options=multiprocessing_options)
        options = async_options or AsyncOptions()
        if timeout_secs is not None:
            options = replace(options, timeout_secs=timeout_secs)
        timeout_s = options.timeout_secs
        processes = multiprocessing_options or MultiprocessingOptions()
        super().__init__(
            handler,
            file_options=file_options,
            atomicity_options=atomicity_options,
            multiprocessing_options=processes.in_background(timeout_s),
            checkpoint_metadata_store=checkpoint_metadata_store,
            temporary_path_class=temporary_path_class,
        )
        self._when_done = options.post_finalization_callback
        self._last = PendingSave(timeout_s)
        self._snapshots = options.snapshots()

    @override
    def save(
        self,
        directory: PathLike,
        *args: object,
        force: bool = False,
        custom_metadata: Mapping[str, object] | None = None,
        save_context: object = None,
        **kwargs: object,
    ) -> None:
        """Start saving a checkpoint once the previous save has ended.

        When this returns, the item may be changed, deleted or donated. For the arguments see
        `Checkpointer.save`.

        Raises:
            BackgroundSaveError: The previous save has failed; this one is in progress.
            CheckpointExistsError: The directory exists and `force` is not set.
            CheckpointError: The handler failed; nothing was left behind.
        """
        warn_of_context(save_context)
        request = SaveRequest(
            resolve_path(directory),
            handled_item(self.handler, self._make_args(0, args, kwargs)),
            overwrite=as_flag("force", force),
            custom_metadata=custom_metadata,
            when_done=self._when_done,
        )
        self._last.begin(lambda: begin_save(request, self._options, self._snapshots))

    def wait_until_finished(self) -> None:
        """Wait until no save is in progress.

        Raises:
            BackgroundSaveError: The save has failed; raised once.
            CheckpointError: The save was in progress when this process was forked.
            TimeoutError: The save takes longer than `timeout_secs`.
        """
        self._last.finish()

    def check_for_errors(self) -> None:
        """Raise the error of a failed save without waiting for one in progress.

        Raises:
            BackgroundSaveError: The save has failed; raised once.
        """
        self._last.check()

    def cancel(self) -> None:
        """Stop the save in progress, if any, and return at once; nothing of it is left behind.

        It raises no error later. A save that is about to appear is not stopped. With several
        processes, every process must call this: if only one stops, the others fail.
        """
        self._last.cancel()

    def is_saving_in_progress(self) -> bool:
        """Return whether a save is in progress."""
        return self._last.is_running()

    @override
    def __repr__(self) -> str:
        handle = self._last.handle
        pending = "" if handle is None else f", {handle!r}"
        return f"{type(self).__name__}({type(self.handler).__name__}{pending})"

    @override
    def restore(
        self, directory: PathLike, *args: object, **kwargs: object
    ) -> Any:  # the item, whatever it is
        """Restore a checkpoint once the pending save has ended; see `Checkpointer.restore`."""
        self._last.finish(inherited=False)
        return super().restore(directory, *args, **kwargs)

    @override
    def close(self) -> None:
        """Wait for the pending save and release resources.

        Raises:
            BackgroundSaveError: The save has failed; raised once.
        """
        try:
            self._last.finish(inherited=False)
        finally:
            self._snapshots.close()
            super().close()


def is_async_checkpointer(checkpointer: object) -> bool:
    """Return whether a checkpointer saves in the background."""
    return isinstance(checkpointer, AsyncCheckpointer)


class StandardCheckpointer(AsyncCheckpointer):
    """An `AsyncCheckpointer` for pytrees that accepts trees instead of argument objects."""

    def __init__(
        self,
        *,
        async_options: AsyncOptions | None = None,
        file_options: FileOptions | None = None,
        atomicity_options: AtomicityOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
        checkpoint_metadata_store: object = None,
        temporary_path_class: object = None,
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
            multiprocessing_options=multiprocessing_options,
            checkpoint_metadata_store=checkpoint_metadata_store,
            temporary_path_class=temporary_path_class,
        )

    @override
    def save(  # pyright: ignore[reportIncompatibleMethodOverride] - Orbax's signature
        self,
        directory: PathLike,
        state: object,
        *,
        save_args: object = None,
        force: bool = False,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Start saving a tree; see `AsyncCheckpointer.save`."""
        if isinstance(state, CheckpointArgs):
            args = cast(StandardSaveArgs, state)
        else:
            args = StandardSaveArgs(state, save_args)
        super().save(directory, args=args, force=force, custom_metadata=custom_metadata)

    @overload
    def restore(
        self,
        directory: PathLike,
        target: AbstractTree | CheckpointArgs | None = None,
        *,
        strict: bool = True,
    ) -> Any: ...
    @overload
    def restore(self, directory: PathLike, target: T, *, strict: bool = True) -> T: ...
    @override
    def restore(  # pyright: ignore[reportIncompatibleMethodOverride] - Orbax's signature
        self, directory: PathLike, target: object = None, *, strict: bool = True
    ) -> Any:  # a tree of any type
        """Restore a tree like a target; see `StandardHandler.restore`."""
        if isinstance(target, CheckpointArgs):
            args = cast(StandardRestoreArgs, target)
        else:
            args = StandardRestoreArgs(target, strict=strict)
        return super().restore(directory, args=args)
