"""Save and restore one item atomically in the foreground."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import TracebackType
from typing import Any, Protocol, Self, cast

from typing_extensions import override

from orbit_ckpt._src.checkpointer.abstract import AbstractCheckpointer
from orbit_ckpt._src.checkpointer.options import (
    AtomicityOptions,
    FileOptions,
    MultiprocessingOptions,
    SessionOptions,
    check_options,
)
from orbit_ckpt._src.checkpointer.pending_save import attach_cleanup_errors
from orbit_ckpt._src.checkpointer.save import SaveRequest, handled_item, save_now
from orbit_ckpt._src.checkpointer.telemetry import reported_restore
from orbit_ckpt._src.checkpointer.temporary_path import TemporaryPath
from orbit_ckpt._src.checkpointer.unfinished import atomicity_of, get_default_temporary_path_class
from orbit_ckpt._src.items.arguments import (
    PassedArgs,
    args_name,
    check_args,
    is_args,
    own_args,
    takes_args,
    wrong_args,
)
from orbit_ckpt._src.items.base import CheckpointHandler, check_handler
from orbit_ckpt._src.items.foreign import foreign_path
from orbit_ckpt._src.items.phases import restore_item
from orbit_ckpt._src.items.pytree import PyTreeHandler
from orbit_ckpt._src.metadata.files import describe_step
from orbit_ckpt._src.metadata.store import writes_metadata
from orbit_ckpt._src.metadata.values import StepMetadata
from orbit_ckpt._src.runtime.checks import as_flag
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.path import PathLike, resolve_path
from orbit_ckpt._src.text import warn_set


class _DescribesItems(Protocol):
    def metadata(self, directory: PathLike) -> object: ...


class Checkpointer(AbstractCheckpointer):
    """Saves and restores checkpoints of one item with a handler."""

    def __init__(
        self,
        handler: CheckpointHandler,
        *,
        file_options: FileOptions | None = None,
        atomicity_options: AtomicityOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
        checkpoint_metadata_store: object = None,
        temporary_path_class: object = None,
    ) -> None:
        """Make a checkpointer.

        Args:
            handler: Saves and restores the item.
            file_options: Permissions and other properties of files.
            atomicity_options: How a checkpoint becomes visible.
            multiprocessing_options: How processes save together.
            checkpoint_metadata_store: Ignored: metadata is always written.
            temporary_path_class: A class of `path.atomicity` instead of `atomicity_options`.
        """
        check_handler("handler", handler)
        check_options(
            file_options=file_options,
            atomicity_options=atomicity_options,
            multiprocessing_options=multiprocessing_options,
        )
        owner = type(self).__qualname__
        why = "metadata is always written, and becomes visible with the items"
        store = None if writes_metadata(checkpoint_metadata_store) else checkpoint_metadata_store
        warn_set(owner, {"checkpoint_metadata_store": (store, None, why)})
        atomicity_options = atomicity_of(temporary_path_class, atomicity_options, owner=owner)
        self._handler = handler
        self._options = SessionOptions(
            file_options or FileOptions(),
            atomicity_options or AtomicityOptions(),
            multiprocessing_options or MultiprocessingOptions(),
        )

    @property
    def handler(self) -> CheckpointHandler:
        """The handler of the item."""
        return self._handler

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
        """Save a checkpoint; it is durable when this returns.

        Args:
            directory: Where to save; must not exist unless `force` is set.
            *args: A `CheckpointArgs` of the handler, or the fields of one.
            force: Whether to replace an existing checkpoint, which stays until the new one is
                complete; in marker mode, which writes in place, it is removed first.
            custom_metadata: A JSON object to store with the checkpoint.
            save_context: Ignored.
            **kwargs: `args=` a `CheckpointArgs`, or fields of one by name.

        Raises:
            CheckpointExistsError: The directory exists and `force` is not set.
            StorageError: The storage refused a write; nothing was left behind.
            ProcessFailedError: Another process has failed; nothing was left behind.
            ProcessTimeoutError: Another process has not joined in time; nothing was left behind.
            CheckpointError: The handler failed; nothing was left behind.
        """
        warn_of_context(save_context)
        request = SaveRequest(
            resolve_path(directory),
            handled_item(self._handler, self._make_args(0, args, kwargs)),
            overwrite=as_flag("force", force),
            custom_metadata=custom_metadata,
        )
        save_now(request, self._options)

    @override
    def restore(
        self, directory: PathLike, *args: object, **kwargs: object
    ) -> Any:  # the item, whatever it is
        """Restore a checkpoint.

        Args:
            directory: Where it was saved.
            *args: A `CheckpointArgs` of the handler, or the fields of one.
            **kwargs: `args=` a `CheckpointArgs`, or fields of one by name.

        Raises:
            CheckpointNotFoundError: There is no checkpoint.
            IncompleteCheckpointError: The save did not finish.
            CheckpointError: The handler failed.
        """
        path = resolve_path(directory)
        with reported_restore(path):
            directory_of(path).check_complete(needs_marker=self._options.atomicity.needs_marker)
            return restore_item(self._handler, path, self._make_args(1, args, kwargs))

    def get_temporary_path(self, directory: PathLike) -> TemporaryPath:
        """Return the temporary path of a save to a directory; nothing is created."""
        path = resolve_path(directory)
        kind = get_default_temporary_path_class(path, atomicity_options=self._options.atomicity)
        return kind.from_final(path, file_options=self._options.files)

    @override
    def structure(self, directory: PathLike) -> Any:  # of the item, whatever it is
        """Return the structure of the saved item if its handler has such a method, else None."""
        describe = getattr(self._handler, "structure", None)
        return (
            None
            if describe is None
            else describe(foreign_path(self._handler, resolve_path(directory)))
        )

    @override
    def metadata(self, directory: PathLike) -> StepMetadata:
        """Return metadata of a checkpoint without reading its arrays.

        Raises:
            CheckpointNotFoundError: There is no checkpoint.
            IncompleteCheckpointError: The save did not finish.
        """
        path = resolve_path(directory)
        directory_of(path).check_complete(needs_marker=self._options.atomicity.needs_marker)
        describe = getattr(self._handler, "metadata", None)
        item = None
        if describe is not None:
            with contextlib.suppress(NotImplementedError):  # raised by handlers without metadata
                item = cast(_DescribesItems, self._handler).metadata(path)
        if isinstance(item, StepMetadata):
            return item
        return describe_step(CheckedDirectory(path), item)

    @override
    def close(self) -> None:
        """Release resources."""
        self._handler.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._handler).__name__})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with attach_cleanup_errors(error):
            self.close()

    def _make_args(
        self, position: int, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> dict[str, object]:
        """Return the handler's keyword arguments for an args object or its fields.

        Args:
            position: 0 for a save, 1 for a restore.
            args: Positional arguments of the caller.
            kwargs: Named arguments of the caller.
        """
        kind = type(self._handler)
        given = {**{f"argument {i}": value for i, value in enumerate(args, 2)}, **kwargs}
        found = next((name for name, value in given.items() if is_args(value)), None)
        if found is not None:
            wanted = given.pop(found)
            if not takes_args(kind, wanted, position):
                raise ValueError(wrong_args(kind, wanted, position))
            _check_beside(wanted, given)
            return {"args": wanted}
        args_class = own_args(kind, position)
        if args_class is None:
            return {"args": PassedArgs(args, kwargs)}
        if "args" in kwargs:
            check_args("args", kwargs["args"])
        has_fields = is_dataclass(args_class)
        names = [field.name for field in fields(args_class)] if has_fields else []
        if len(args) > len(names):
            raise TypeError(f"expected at most {', '.join(names)}; found {len(args)} arguments")
        make = cast(Any, args_class)
        try:
            bound = inspect.signature(make).bind(*args, **kwargs)
        except TypeError as error:
            call = f"{args_name(args_class)}(...)"
            raise TypeError(
                f"{kind.__qualname__}: {error}. Give {', '.join(names)}, or args={call}."
            ) from None
        return {"args": make(*bound.args, **bound.kwargs)}


def warn_of_context(save_context: object) -> None:
    """Warn of a save context, which has no effect."""
    why = "the times that a caller has waited are in its own events"
    warn_set("save", {"save_context": (save_context, None, why)})


def _check_beside(wanted: object, given: Mapping[str, object]) -> None:
    """Check that arguments given in addition to an args object do not contradict it.

    Raises:
        ValueError: One does, and would be ignored.
    """
    said = vars(wanted) if hasattr(wanted, "__dict__") else {}
    contrary = [
        name
        for name, value in given.items()
        if value is not None
        and not any(value is one for one in ([said[name]] if name in said else said.values()))
    ]
    if contrary:
        raise ValueError(
            f"{', '.join(contrary)}: found with a {type(wanted).__name__} that says otherwise. "
            f"Set it in the {type(wanted).__name__}, or give fields only."
        )


class PyTreeCheckpointer(Checkpointer):
    """A `Checkpointer` for pytrees."""

    def __init__(
        self,
        primary_host: int | None = 0,
        use_ocdbt: bool = True,
        use_zarr3: bool = True,
        use_compression: bool = True,
    ) -> None:
        handler = PyTreeHandler(
            use_ocdbt=use_ocdbt, use_zarr3=use_zarr3, use_compression=use_compression
        )
        processes = MultiprocessingOptions(primary_host=primary_host)
        super().__init__(handler, multiprocessing_options=processes)
