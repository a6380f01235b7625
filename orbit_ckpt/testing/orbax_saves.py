"""Directories, handlers and registries for tests, under the names of Orbax's `test_utils`."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Collection, Generator, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar, cast

import jax
import numpy as np
import tensorstore as ts
from etils import epath
from jax.sharding import Mesh, PartitionSpec
from typing_extensions import override

from orbit_ckpt._src.items.arguments import register_with_handler
from orbit_ckpt._src.items.base import AsyncCheckpointHandler
from orbit_ckpt._src.items.composite import Composite
from orbit_ckpt._src.items.pytree import PyTreeHandler, PyTreeRestoreArgs, PyTreeSaveArgs
from orbit_ckpt._src.runtime import multihost
from orbit_ckpt._src.runtime.futures import Future
from orbit_ckpt._src.storage.layout import STEP_METADATA, TEMPORARY_SUFFIX, is_temporary_name
from orbit_ckpt._src.storage.path import is_gcs_path
from orbit_ckpt._src.type_handlers.array_target import ArrayRestoreArgs
from orbit_ckpt._src.type_handlers.base import TypeHandler
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY, Predicate
from orbit_ckpt.testing.orbax_trees import create_sharded_array

PathLike = str | os.PathLike[str]
TestClass = TypeVar("TestClass", bound=type)

_logger = logging.getLogger(__name__)

sync_global_processes = multihost.sync_global_processes


def erase_and_create_empty(directory: PathLike) -> epath.Path:
    """Delete a directory if it exists, and create it anew."""
    path: Any = epath.Path(directory)  # has more methods than its stubs
    if path.exists():
        path.rmtree()
    path.mkdir()
    return path


def empty_directory(directory: PathLike) -> bool:
    """Delete everything in a directory; return whether it exists."""
    path: Any = epath.Path(directory)
    if not path.exists():
        return False
    for entry in path.iterdir():
        if entry.is_dir():
            entry.rmtree()
        else:
            entry.unlink()
    return True


def print_directory(directory: PathLike, level: int = 0) -> None:
    """Log all files below a directory.

    Args:
        directory: The directory.
        level: How deep it is below the one where the list begins.

    Raises:
        ValueError: There is no such directory.
    """
    path = epath.Path(directory)
    if not path.is_dir():
        raise ValueError(f"{path} is no directory; give one that exists.")
    _logger.info("%s%s/", ".." * level, path.name if level else path)
    for entry in sorted(path.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            print_directory(entry, level + 1)
        else:
            _logger.info("%s%s", ".." * (level + 1), entry.name)


def create_tmp_directory(
    tmp_dir: Any,
    final_dir: epath.Path,
    *,
    primary_host: int | None = 0,
    active_processes: Collection[int] | None = None,
    barrier_sync_key_prefix: str | None = None,
    path_permission_mode: int | None = None,
    metadata_store: Any = None,
) -> Any:
    """Create the directory of a save that has not been committed, as a save does.

    Args:
        tmp_dir: The directory; an existing one of an earlier save is deleted.
        final_dir: Its path after the commit.
        primary_host: Index of the process that creates it, None for every process.
        active_processes: The processes that call this, None for all.
        barrier_sync_key_prefix: Prefix of the barriers' names.
        path_permission_mode: Its permissions.
        metadata_store: Writes the time into it.

    Raises:
        FileExistsError: `tmp_dir` exists, and is a complete checkpoint.
    """

    def wait(stage: str) -> None:
        name = multihost.unique_barrier_key(
            f"create_tmp_directory:{stage}", prefix=barrier_sync_key_prefix, suffix=final_dir.name
        )
        multihost.sync_global_processes(name, processes=active_processes)

    wait("pre")
    if multihost.is_primary_host(primary_host):
        if tmp_dir.exists():
            if not is_temporary_name(tmp_dir.name):
                raise FileExistsError(f"{tmp_dir} exists, and is complete; give another path.")
            tmp_dir.rmtree()
        tmp_dir.mkdir(parents=True, mode=path_permission_mode)
        if metadata_store is not None:
            now = {"init_timestamp_nsecs": time.time_ns()}
            metadata_store.write(file_path=tmp_dir / STEP_METADATA, metadata=now)
    wait("post")
    return tmp_dir


def save_fake_tmp_dir(
    directory: epath.Path,
    step: int,
    item: str,
    subdirs: Sequence[str] | None = None,
    step_prefix: str | None = None,
) -> epath.Path:
    """Create what an interrupted save of an item leaves, and return the item's directory.

    Args:
        directory: The directory of the run.
        step: The step.
        item: The item.
        subdirs: Directories to create in that of the item.
        step_prefix: What the step's name begins with.
    """
    step_path = _unfinished(epath.Path(directory) / f"{step_prefix or ''}{step}")
    item_path = _unfinished(step_path / item)
    if multihost.process_index() == 0:
        for name in subdirs or ():
            (item_path / name).mkdir(parents=True)
    multihost.sync_global_processes("save_fake_tmp_dir")
    return item_path


def _unfinished(final: epath.Path) -> epath.Path:
    temporary = final if is_gcs_path(final) else final.parent / f"{final.name}{TEMPORARY_SUFFIX}"
    return create_tmp_directory(temporary, final)


def is_compression_used(
    checkpoint_directory: PathLike, param_name: str, use_zarr3: bool, use_ocdbt: bool
) -> bool:
    """Return whether a stored array is compressed.

    Args:
        checkpoint_directory: The directory of the tree.
        param_name: Storage name of the array.
        use_zarr3: Whether it is stored as zarr3.
        use_ocdbt: Whether it is stored in a database.
    """
    base = {"driver": "file", "path": f"{os.fspath(checkpoint_directory)}/"}
    database = {"driver": "ocdbt", "base": base, "path": param_name}
    kvstore = database if use_ocdbt else {**base, "path": f"{base['path']}{param_name}"}
    opened = cast(Any, ts).open({"driver": "zarr3" if use_zarr3 else "zarr", "kvstore": kvstore})
    metadata = opened.result().spec().to_json()["metadata"]
    if not use_zarr3:
        return metadata["compressor"] is not None
    return any(codec["name"] in {"blosc", "zstd"} for codec in _codecs(metadata["codecs"]))


def _codecs(codecs: Sequence[dict[str, Any]]) -> Generator[dict[str, Any]]:
    for codec in codecs:
        yield codec
        yield from _codecs(codec.get("configuration", {}).get("codecs", ()))


class PyTreeCheckpointHandler(PyTreeHandler):
    """A handler of trees whose `save` also completes the directory."""

    @override
    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        super().save(directory, *args, **kwargs)
        sync_global_processes("PyTreeCheckpointHandler:save")
        if multihost.process_index() == 0:
            self.finalize(directory)
        sync_global_processes("PyTreeCheckpointHandler:finalize")


class ErrorCheckpointHandler(AsyncCheckpointHandler):
    """A handler of trees whose background saves fail with a `SystemError`.

    Args:
        handler: Saves and restores the tree.
        executor: Runs what fails.
    """

    def __init__(self, handler: PyTreeHandler, executor: Executor) -> None:
        self._handler = handler
        self._executor = executor

    @override
    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        self._handler.save(directory, *args, **kwargs)

    @override
    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> object:
        return self._handler.restore(directory, *args, **kwargs)

    @override
    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Sequence[Future]:
        futures = await self._handler.async_save(directory, *args, **kwargs)
        return [*(futures or ()), self._executor.submit(_fail)]

    @override
    def finalize(self, directory: Any) -> None:
        self._handler.finalize(directory)

    @override
    def close(self) -> None:
        self._handler.close()


def _fail() -> None:
    raise SystemError("ErrorCheckpointHandler fails on purpose.")


@register_with_handler(ErrorCheckpointHandler, for_save=True)
class ErrorSaveArgs(PyTreeSaveArgs):
    """Arguments of a save with `ErrorCheckpointHandler`."""


@register_with_handler(ErrorCheckpointHandler, for_restore=True)
class ErrorRestoreArgs(PyTreeRestoreArgs):
    """Arguments of a restore with `ErrorCheckpointHandler`."""


def get_composite_save_args(pytree: Any) -> Composite:
    """Return arguments that save a tree as the item `state`."""
    return Composite(state=PyTreeSaveArgs(pytree))


def concurrent_gb_test_setup() -> tuple[PyTreeCheckpointHandler, Any, Any]:
    """Return a handler with limits of 1 GB, a tree of four small arrays, and its `restore_args`."""
    handler = PyTreeCheckpointHandler(
        save_concurrent_gb=1, restore_concurrent_gb=1, use_ocdbt=False
    )
    mesh, axes = Mesh(np.asarray(jax.devices()), ("x",)), PartitionSpec(None)
    tree = {name: create_sharded_array(np.arange(1, dtype=np.int32), mesh, axes) for name in "abcd"}
    return handler, tree, {name: ArrayRestoreArgs(sharding=tree[name].sharding) for name in tree}


def global_type_handler_registry_context() -> contextlib.AbstractContextManager[None]:
    """Restore the global registry of type handlers after the block."""
    return GLOBAL_TYPE_HANDLER_REGISTRY.scope()


@contextlib.contextmanager
def register_type_handler(
    ty: type, handler: TypeHandler, func: Predicate | None
) -> Generator[None]:
    """Register a type handler globally for the duration of a block."""
    with GLOBAL_TYPE_HANDLER_REGISTRY.scope():
        GLOBAL_TYPE_HANDLER_REGISTRY.add(ty, handler, func, override=True)
        yield


@contextlib.contextmanager
def ocdbt_checkpoint_context(use_ocdbt: bool, ts_context: Any) -> Generator[None]:
    """Restore the global registry of type handlers after the block.

    Args:
        use_ocdbt: Ignored; the item handler has this option.
        ts_context: Ignored; the arrays of this package need no context.
    """
    del use_ocdbt, ts_context
    with GLOBAL_TYPE_HANDLER_REGISTRY.scope():
        yield


def set_tensorstore_driver_for_test() -> None:
    """Do nothing; local files are written without a driver."""


def barrier_compatible_test(cls: TestClass) -> TestClass:
    """Return a class of tests unchanged; here, tests may use the same names of barriers."""
    return cls
