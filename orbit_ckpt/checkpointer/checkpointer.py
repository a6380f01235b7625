"""Save and restore one item, atomically and at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import TracebackType
from typing import Any, Protocol, Self, cast

from orbit_ckpt.checkpointer.durations import reported_restore
from orbit_ckpt.checkpointer.last_save import told_beside
from orbit_ckpt.checkpointer.options import (
    AtomicityOptions,
    FileOptions,
    MultiprocessingOptions,
    SessionOptions,
)
from orbit_ckpt.checkpointer.saving import SaveRequest, save_now
from orbit_ckpt.formats.orbax import check_complete
from orbit_ckpt.items.base import (
    CheckpointHandler,
    is_args,
    registered_args,
    restore_item,
)
from orbit_ckpt.items.pytree import PyTreeHandler
from orbit_ckpt.metadata.files import describe_step
from orbit_ckpt.metadata.values import StepMetadata
from orbit_ckpt.storage.integrity import CheckedDirectory
from orbit_ckpt.storage.path import resolve_path


class _DescribesItems(Protocol):
    def metadata(self, directory: str | os.PathLike[str]) -> object: ...


class Checkpointer:
    """Saves and restores checkpoints of one item through a handler."""

    def __init__(
        self,
        handler: CheckpointHandler,
        *,
        file_options: FileOptions | None = None,
        atomicity_options: AtomicityOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
    ) -> None:
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

    def save(
        self,
        directory: str | os.PathLike[str],
        *args: object,
        force: bool = False,
        custom_metadata: Mapping[str, object] | None = None,
        **kwargs: object,
    ) -> None:
        """Save a checkpoint; when this returns it is durable.

        Args:
            directory: Where to save; must not exist unless `force` is set.
            *args: A `CheckpointArgs` of the handler, or the fields of one.
            force: Whether to replace an existing checkpoint, which stays until the new one is
                complete; in marker mode, which writes in place, it is removed first.
            custom_metadata: A JSON object to keep with the checkpoint.
            **kwargs: `args=` a `CheckpointArgs`, or fields of one by name.

        Raises:
            CheckpointExistsError: The directory exists and `force` is not set.
            StorageError: The storage refused a write; nothing was left behind.
            ProcessFailedError: Another process of the program has failed; nothing was left behind.
            ProcessTimeoutError: Another process did not come in time; nothing was left behind.
            CheckpointError: What the handler raises; nothing was left behind.
        """
        request = SaveRequest(
            resolve_path(directory),
            self._make_args(0, args, kwargs),
            overwrite=force,
            custom_metadata=custom_metadata,
        )
        save_now(self._handler, request, self._options)

    def restore(
        self, directory: str | os.PathLike[str], *args: object, **kwargs: object
    ) -> Any:  # the item, whatever it is
        """Restore a checkpoint.

        Args:
            directory: Where it was saved.
            *args: A `CheckpointArgs` of the handler, or the fields of one.
            **kwargs: `args=` a `CheckpointArgs`, or fields of one by name.

        Raises:
            CheckpointNotFoundError: There is no checkpoint.
            IncompleteCheckpointError: The save did not finish.
            CheckpointError: What the handler raises.
        """
        path = resolve_path(directory)
        with reported_restore(path):
            check_complete(path, needs_marker=self._options.atomicity.needs_marker)
            return restore_item(self._handler, path, self._make_args(1, args, kwargs))

    def metadata(self, directory: str | os.PathLike[str]) -> StepMetadata:
        """Return what is known of a checkpoint without reading its arrays.

        Raises:
            CheckpointNotFoundError: There is no checkpoint.
            IncompleteCheckpointError: The save did not finish.
        """
        path = resolve_path(directory)
        check_complete(path, needs_marker=self._options.atomicity.needs_marker)
        describe = getattr(self._handler, "metadata", None)
        found = cast(_DescribesItems, self._handler).metadata(path) if describe else None
        if isinstance(found, StepMetadata):
            return found
        return describe_step(CheckedDirectory(path), found)

    def close(self) -> None:
        """Give up resources."""
        self._handler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with told_beside(error):
            self.close()

    def _make_args(
        self, position: int, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> dict[str, object]:
        """Return the handler's keyword arguments, from an args object or its fields."""
        classes = registered_args(type(self._handler))
        given = [*args, *kwargs.values()]
        objects = [value for value in given if is_args(value)]
        if objects:
            if len(given) > 1:
                raise ValueError("Give either one CheckpointArgs or its fields, not both.")
            if classes is not None and not isinstance(objects[0], classes[position]):
                raise ValueError(
                    f"{type(self._handler).__qualname__} takes {classes[position].__name__} here, "
                    f"found {type(objects[0]).__module__}.{type(objects[0]).__name__}."
                )
            return {"args": objects[0]}
        if classes is None:
            names = [f"argument {i}" for i in range(len(args))]
            raise ValueError(
                f"{type(self._handler).__qualname__} has no registered arguments for {names}; "
                "register a class with register_with_handler and pass args=."
            )
        kind = cast(Any, classes[position])
        has_fields = is_dataclass(classes[position])
        names = [field.name for field in fields(kind)] if has_fields else []
        if len(args) > len(names):
            raise TypeError(f"expected at most {', '.join(names)}; found {len(args)} arguments")
        return {"args": kind(**dict(zip(names, args, strict=False)), **kwargs)}


class PyTreeCheckpointer(Checkpointer):
    """A `Checkpointer` of pytrees."""

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
