"""Load states and named checkpointables, and describe them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
from typing_extensions import deprecated

from orbit_ckpt._src.checkpointer.telemetry import reported_restore
from orbit_ckpt._src.checkpointer.wrong_arguments import suggest_target
from orbit_ckpt._src.errors import (
    CheckpointNotFoundError,
    ItemNotFoundError,
    TreeMismatchError,
)
from orbit_ckpt._src.formats.safetensors.read import FORMAT as SAFETENSORS
from orbit_ckpt._src.guards import is_dict
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.runtime.loop import run_sync
from orbit_ckpt._src.storage.integrity import open_checked
from orbit_ckpt._src.v1.abstract import is_abstract_leaf
from orbit_ckpt._src.v1.checkpoint_metadata import CheckpointMetadata
from orbit_ckpt._src.v1.context import Context, current_context
from orbit_ckpt._src.v1.engine_handler import EngineHandler
from orbit_ckpt._src.v1.errors import CheckpointableMismatchError, InvalidLayoutError
from orbit_ckpt._src.v1.handlers import METRICS, PyTreeHandler, handler_for_load
from orbit_ckpt._src.v1.layout import (
    AUTO,
    Checkpoint,
    check_name,
    open_checkpoint,
    without_deleted,
)
from orbit_ckpt._src.v1.options import CheckpointLayout
from orbit_ckpt._src.v1.registration import NoEntryError, WrongHandlerError
from orbit_ckpt._src.v1.response import BackgroundResponse
from orbit_ckpt._src.v1.stored_items import StoredItemHandler
from orbit_ckpt._src.v1.types import AsyncResponse, Handler, PathLike

T = TypeVar("T")


@suggest_target("abstract_state")
def load(
    path: PathLike, abstract_state: Any = None, *, checkpointable_name: str | None = AUTO
) -> Any:
    """Load a pytree that any of the APIs has saved.

    Args:
        path: A checkpoint.
        abstract_state: A tree that gives the structure, types, dtypes and shardings of the result:
            of `jax.ShapeDtypeStruct`, arrays, scalars or their types; leaves that are `...` are not
            read. The metadata of a checkpoint is one too. None loads the tree as it was saved.
        checkpointable_name: The name of the tree in the checkpoint; None for a checkpoint that is a
            single tree without a name. By default `state`, else the first tree.

    Raises:
        InvalidLayoutError: There is no checkpoint, or no such tree in it.
        TreeMismatchError: The abstract state differs from the checkpoint.
        CorruptionError: Stored data is missing or damaged.
    """
    context = current_context()
    if isinstance(abstract_state, CheckpointMetadata):
        abstract_state = cast(CheckpointMetadata[Any], abstract_state).metadata
    _check_state_name(checkpointable_name)
    _check_abstract(abstract_state)
    with reported_restore(path), context:
        checkpoint = open_checkpoint(path, context)
        name = checkpoint.state_name(checkpointable_name)
        return _read(checkpoint, name, abstract_state, context)


def load_async(
    path: PathLike, abstract_state: Any = None, *, checkpointable_name: str | None = AUTO
) -> AsyncResponse[Any]:
    """Load a pytree in the background; for the arguments see `load`."""
    name = checkpointable_name
    return _in_background(partial(load, path, abstract_state, checkpointable_name=name))


@suggest_target("abstract_checkpointables")
def load_checkpointables(path: PathLike, abstract_checkpointables: Any = None) -> dict[str, Any]:
    """Load several named checkpointables.

    Args:
        path: A checkpoint.
        abstract_checkpointables: What to load, by name, with for each how to load it: an abstract
            state, the class of a message, an object that receives a state, or None for as it was
            saved. None loads all.

    Raises:
        InvalidLayoutError: There is no checkpoint with named checkpointables.
        ItemNotFoundError: The checkpoint lacks one of them.
        NoEntryError: No handler loads one of them.
        TreeMismatchError: The abstract form of one differs from the checkpoint; also a `KeyError`.
    """
    context = current_context()
    wanted = _check_checkpointables(abstract_checkpointables)
    with reported_restore(path), context:
        checkpoint = _with_names(path, context)
        if not wanted:
            wanted = dict.fromkeys(without_deleted(checkpoint.names, checkpoint))
        existing = checkpoint.existing
        for name in wanted:
            checkpoint.check_not_deleting(name)
            if name not in existing:
                raise ItemNotFoundError(
                    f"No checkpointable {name!r} at {checkpoint.path}. Ask for one of these: "
                    f"{', '.join(map(repr, existing)) or 'there are none'}."
                )
        return {name: _noted(checkpoint, name, wanted[name], context) for name in wanted}


def load_checkpointables_async(
    path: PathLike, abstract_checkpointables: Any = None
) -> AsyncResponse[dict[str, Any]]:
    """Load several named checkpointables in the background; see `load_checkpointables`."""
    return _in_background(partial(load_checkpointables, path, abstract_checkpointables))


def metadata(path: PathLike, checkpointable_name: str | None = AUTO) -> CheckpointMetadata[Any]:
    """Return metadata of a checkpoint, with an abstract form of its tree; reads no array.

    Args:
        path: A checkpoint.
        checkpointable_name: As for `load`.

    Raises:
        InvalidLayoutError: There is no checkpoint, or no such tree in it.
    """
    context = current_context()
    _check_state_name(checkpointable_name)
    with context:
        checkpoint = open_checkpoint(path, context)
        name = checkpoint.state_name(checkpointable_name)
        return _described(checkpoint, _describe(checkpoint, name, context), context)


def checkpointables_metadata(path: PathLike) -> CheckpointMetadata[dict[str, Any]]:
    """Return metadata of a checkpoint, with the abstract forms of its checkpointables by name.

    A checkpointable whose handler has no abstract form has None.

    Raises:
        InvalidLayoutError: There is no checkpoint with named checkpointables.
    """
    context = current_context()
    with context:
        checkpoint = _with_names(path, context)
        names = without_deleted(checkpoint.names, checkpoint)
        found = {name: _describe(checkpoint, name, context) for name in names}
        return _described(checkpoint, found, context)


@deprecated("Use load().")
def load_pytree(*args: Any, **kwargs: Any) -> Any:
    """Call `load`."""
    return load(*args, **kwargs)


@deprecated("Use load_async().")
def load_pytree_async(*args: Any, **kwargs: Any) -> AsyncResponse[Any]:
    """Call `load_async`."""
    return load_async(*args, **kwargs)


@deprecated("Use metadata().")
def pytree_metadata(*args: Any, **kwargs: Any) -> CheckpointMetadata[Any]:
    """Call `metadata`."""
    return metadata(*args, **kwargs)


def _in_background(call: Callable[[], T]) -> AsyncResponse[T]:
    async def run() -> T:
        return await asyncio.to_thread(call)

    return BackgroundResponse(run())


def _with_names(path: PathLike, context: Context) -> Checkpoint:
    checkpoint = open_checkpoint(path, context)
    if checkpoint.is_flat:
        raise InvalidLayoutError(
            f"{checkpoint.path} is one tree without named checkpointables. Call load or metadata."
        )
    return checkpoint


def _noted(checkpoint: Checkpoint, name: str, abstract: object, context: Context) -> object:
    try:
        return _read(checkpoint, name, abstract, context)
    except TreeMismatchError as error:
        raise CheckpointableMismatchError(f"{name}: {error}", paths=error.paths) from None
    except CheckpointNotFoundError as error:
        raise WrongHandlerError(
            f"{name}: its handler does not find what it loads: {error}"
        ) from None
    except Exception as error:  # raised again
        error.add_note(f"in checkpointable {name!r}")
        raise


def _read(checkpoint: Checkpoint, name: str | None, abstract: object, context: Context) -> object:
    """Read one checkpointable with its handler; files that a foreign one reads are checked."""
    if checkpoint.is_foreign:
        return PyTreeHandler().read(checkpoint.path, abstract, reader=_reader(context))
    handler = _handler(checkpoint, name, abstract, context)
    place = checkpoint.place_of(name)
    if name is not None and isinstance(handler, PyTreeHandler) and not checkpoint.holds_tree(name):
        raise NoEntryError(
            f"{checkpoint.path}: {name!r} is no tree; it was written by "
            f"{checkpoint.typestr_of(name)}, for which no handler is registered here. Register it: "
            "handlers.register_handler(...)."
        )
    checks_itself = isinstance(handler, EngineHandler) and not isinstance(
        handler, StoredItemHandler
    )
    if not checks_itself:
        open_checked(checkpoint.path).verify_below(f"{name}/" if name else "")
    if isinstance(handler, EngineHandler):
        return handler.read(place, abstract)
    directory = context.file.path_class(place)

    async def load_it() -> object:
        return await (await handler.load(directory, abstract))

    return run_sync(load_it())


def _describe(checkpoint: Checkpoint, name: str | None, context: Context) -> Any:
    """Return the abstract form of one checkpointable; None if it has none."""
    if checkpoint.is_foreign:
        return PyTreeHandler().describe(checkpoint.path, reader=_reader(context))
    handler = _handler(checkpoint, name, None, context)
    place = checkpoint.place_of(name)
    if isinstance(handler, PyTreeHandler):
        is_tree = name is None or checkpoint.holds_tree(name)
        return handler.describe(place) if is_tree else None
    directory: Path = context.file.path_class(place)
    try:
        return run_sync(handler.metadata(directory))
    except NotImplementedError:  # raised by handlers without metadata
        return None


def _handler(
    checkpoint: Checkpoint, name: str | None, abstract: object, context: Context
) -> Handler:
    registry, typestr = context.checkpointables.registry, checkpoint.typestr_of(name)
    return handler_for_load(registry, name or checkpoint.path.name, abstract, typestr)


def _described(checkpoint: Checkpoint, found: T, context: Context) -> CheckpointMetadata[T]:
    document = checkpoint.document
    return CheckpointMetadata(
        context.file.path_class(checkpoint.path),
        metadata=found,
        init_timestamp_nsecs=document.init_timestamp_nsecs,
        commit_timestamp_nsecs=document.commit_timestamp_nsecs,
        custom_metadata=document.custom_metadata,
    )


def _reader(context: Context) -> Any:
    is_safetensors = context.checkpoint_layout is CheckpointLayout.SAFETENSORS
    return SAFETENSORS if is_safetensors else None


def _check_state_name(name: str | None) -> None:
    if name is not None and name != AUTO:
        check_name(name, {METRICS})


def _check_checkpointables(given: object) -> Mapping[str, object] | None:
    """Return what a caller wants to load, by name.

    Raises:
        ValueError: It is no dict, or a name is invalid.
    """
    if isinstance(given, CheckpointMetadata):
        given = cast(CheckpointMetadata[object], given).metadata
    if given is None:
        return None
    if not is_dict(given):
        raise ValueError(
            f"abstract_checkpointables must be a dict by name, found {show(given)}. Give "
            "{'state': abstract_state}, for example, or call load."
        )
    for name in given:
        check_name(name, {METRICS, AUTO})
    return cast(Mapping[str, object], given)


def _check_abstract(abstract: object) -> None:
    """Check that every leaf says how to load one.

    Raises:
        TypeError: One does not.
    """
    tree_util: Any = jax.tree_util
    for key, leaf in tree_util.tree_leaves_with_path(abstract):
        if not is_abstract_leaf(leaf):
            raise TypeError(
                f"abstract_state{tree_util.keystr(key)} is {show(leaf)}; give a "
                "jax.ShapeDtypeStruct, an array, a scalar, or the type of one."
            )
