"""Save states and named checkpointables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from typing_extensions import deprecated

from orbit_ckpt._src.checkpointer.save import SaveRequest, begin_save, decline_save, save_now
from orbit_ckpt._src.checkpointer.wrong_arguments import suggest
from orbit_ckpt._src.guards import is_dict, is_mapping
from orbit_ckpt._src.runtime.checks import as_flag, show
from orbit_ckpt._src.runtime.commit import Commit, ItemToSave, Progress
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.storage.atomic import write_marker
from orbit_ckpt._src.storage.durable import sync_files, write_file
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.v1.context import Context, current_context
from orbit_ckpt._src.v1.engine_handler import EngineHandler, collect_finalizers
from orbit_ckpt._src.v1.handlers import METRICS, STATE, handler_for_save, typestr_of
from orbit_ckpt._src.v1.layout import AUTO, INDICATOR, check_name
from orbit_ckpt._src.v1.options import CheckpointLayout
from orbit_ckpt._src.v1.response import SaveResponse
from orbit_ckpt._src.v1.types import AsyncResponse, CreatedPath, Handler, JsonType, PathLike

_suggest = suggest(force="overwrite", item="state", tree="state", name="checkpointable_name")


@_suggest
def save(
    path: PathLike,
    state: Any,
    *,
    checkpointable_name: str = STATE,
    overwrite: bool = False,
    custom_metadata: JsonType | None = None,
) -> None:
    """Save a pytree; it is durable when this returns.

    Args:
        path: Directory to create.
        state: The tree.
        checkpointable_name: The name under which the checkpoint holds it.
        overwrite: Whether to replace an existing checkpoint, which stays until the new one is
            complete.
        custom_metadata: A JSON object to store with the checkpoint.

    Raises:
        CheckpointExistsError: The path exists and `overwrite` is not set.
        UnsupportedLeafError: Some leaves cannot be saved; nothing is left behind.

    Example:
        >>> from orbit_ckpt import v1
        >>> v1.save("run/step_1", {"w": np.ones((2, 3)), "step": 1})
        >>> v1.load("run/step_1")["step"]
        1
    """
    save_checkpointables(
        path,
        {checkpointable_name: state},
        overwrite=overwrite,
        custom_metadata=custom_metadata,
    )


@_suggest
def save_async(
    path: PathLike,
    state: Any,
    *,
    checkpointable_name: str = STATE,
    overwrite: bool = False,
    custom_metadata: JsonType | None = None,
) -> AsyncResponse[None]:
    """Save a pytree in the background; its leaves may be changed, deleted or donated at once.

    For the arguments see `save`; `result()` of the response waits until the checkpoint is durable.
    """
    return save_checkpointables_async(
        path,
        {checkpointable_name: state},
        overwrite=overwrite,
        custom_metadata=custom_metadata,
    )


@suggest(force="overwrite", items="checkpointables")
def save_checkpointables(
    path: PathLike,
    checkpointables: dict[str, Any],
    *,
    overwrite: bool = False,
    custom_metadata: JsonType | None = None,
) -> None:
    """Save several named checkpointables, such as a state and a data iterator, in one checkpoint.

    Args:
        path: Directory to create.
        checkpointables: What to save, by name; each with the handler that is registered for it.
        overwrite: As for `save`.
        custom_metadata: As for `save`.

    Raises:
        CheckpointExistsError: The path exists and `overwrite` is not set.
        NoEntryError: No handler saves one of them.
        ValueError: There are none, or one has a reserved name.
    """
    context = current_context()
    request = save_request(
        path, checkpointables, context, overwrite=overwrite, custom_metadata=custom_metadata
    )
    save_now(request, context.session())


@suggest(force="overwrite", items="checkpointables")
def save_checkpointables_async(
    path: PathLike,
    checkpointables: dict[str, Any],
    *,
    overwrite: bool = False,
    custom_metadata: JsonType | None = None,
) -> AsyncResponse[None]:
    """Save several named checkpointables in the background; see `save_checkpointables`."""
    context = current_context()
    request = save_request(
        path, checkpointables, context, overwrite=overwrite, custom_metadata=custom_metadata
    )
    return SaveResponse(begin_save(request, context.session()), None)


@deprecated("Use save().")
def save_pytree(*args: Any, **kwargs: Any) -> None:
    """Call `save`."""
    save(*args, **kwargs)


@deprecated("Use save_async().")
def save_pytree_async(*args: Any, **kwargs: Any) -> AsyncResponse[None]:
    """Call `save_async`."""
    return save_async(*args, **kwargs)


def save_request(
    path: PathLike,
    checkpointables: Mapping[str, Any],
    context: Context,
    *,
    overwrite: bool = False,
    custom_metadata: JsonType | None = None,
) -> SaveRequest:
    """Return the request of a save.

    Raises:
        ValueError: There are no checkpointables, or one has an invalid name.
        NoEntryError: No handler saves one of them.
    """
    place = resolve_path(path)
    try:
        _check_custom_metadata(custom_metadata)
        item = item_to_save(check_checkpointables(checkpointables), context)
    except Exception as error:  # raised again once the other processes know
        decline_save(place, error, context.session())
        raise
    return SaveRequest(
        place,
        item,
        overwrite=as_flag("overwrite", overwrite),
        custom_metadata=custom_metadata,
        when_done=context.asynchronous.post_finalization_callback,
    )


def _check_custom_metadata(given: object) -> None:
    if given is not None and not is_mapping(given):
        raise ValueError(
            f"custom_metadata must be a JSON object, found {show(given)}. Give a dict."
        )


def check_checkpointables(given: object) -> dict[str, Any]:
    """Return the checkpointables of a save.

    Raises:
        ValueError: They are no dict, or an empty one, or one has an invalid name.
    """
    if not is_dict(given) or not given:
        raise ValueError(
            f"checkpointables must be a dict with at least one name, found "
            f"{'an empty dict' if is_dict(given) else show(given)}. Give {{'state': tree}}, for "
            "example, or call save(path, tree)."
        )
    for name in given:
        check_name(name, {METRICS, AUTO})
    return cast(dict[str, Any], given)


def item_to_save(checkpointables: Mapping[str, Any], context: Context) -> ItemToSave:
    """Return checkpointables as the items of one save, each with its handler.

    Raises:
        NotImplementedError: The context asks for another layout than Orbax's.
        NoEntryError: No handler saves one of them.
    """
    if context.checkpoint_layout is CheckpointLayout.SAFETENSORS:
        raise NotImplementedError(
            "Saves write Orbax's layout only. Save with it, then call orbit_ckpt.convert(path, "
            "destination, to='safetensors')."
        )
    registry = context.checkpointables.registry
    with context:
        handlers = {
            name: handler_for_save(registry, name, value) for name, value in checkpointables.items()
        }

    async def stage(directory: Path, copy: bool) -> Commit:
        with context:
            return await _stage(directory, checkpointables, handlers, copy=copy)

    return ItemToSave(stage, "", dict(checkpointables))


async def _stage(
    directory: Path,
    checkpointables: Mapping[str, Any],
    handlers: Mapping[str, Handler],
    *,
    copy: bool,
) -> Commit:
    """Copy all checkpointables and return the commit that writes them."""
    staged: dict[str, Commit] = {}
    for name in sorted(checkpointables):
        handler, folder = handlers[name], directory / name
        try:
            if isinstance(handler, EngineHandler):
                staged[name] = await handler.stage(folder, checkpointables[name], copy=copy)
            else:
                staged[name] = await _stage_foreign(handler, folder, checkpointables[name])
        except Exception as error:  # raised again
            if len(checkpointables) > 1:
                error.add_note(f"in checkpointable {name!r}")
            raise

    async def write(name: str) -> None:
        await asyncio.to_thread((directory / name).mkdir, exist_ok=True)
        await staged[name].run()

    async def write_all() -> None:
        await run_all(write(name) for name in staged)

    def finalize() -> None:
        for name, commit in staged.items():
            commit.finalize()
            write_marker(directory / name, directory / name)
        write_file(directory / INDICATOR, b"")

    recorded = {name: typestr_of(type(handlers[name])) for name in checkpointables}
    return Commit(
        write_all,
        finalize,
        lambda: sum((commit.progress for commit in staged.values()), Progress()),
        recorded,
    )


async def _stage_foreign(handler: Handler, folder: Path, checkpointable: object) -> Commit:
    """Call a handler that is not built in; its files are made durable at the end."""
    last: list[Callable[[], None]] = []
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    with collect_finalizers(last):
        writing = await handler.save(CreatedPath(folder), checkpointable)

    async def write() -> None:
        with collect_finalizers(last):
            await writing

    def finalize() -> None:
        for call in last:
            call()
        sync_files(folder)

    return Commit(write, finalize)
