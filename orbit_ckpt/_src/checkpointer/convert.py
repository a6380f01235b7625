"""Convert a checkpoint of any readable format into any writable one.

The result appears complete, or not at all.
"""

from __future__ import annotations

import logging
import threading
import typing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

from msgspec.structs import replace
from numpy.typing import DTypeLike

from orbit_ckpt._src.checkpointer.api import load
from orbit_ckpt._src.checkpointer.inspect import metadata
from orbit_ckpt._src.checkpointer.options import SessionOptions
from orbit_ckpt._src.checkpointer.save import SaveRequest, save_now
from orbit_ckpt._src.checkpointer.wrong_arguments import check_patterns
from orbit_ckpt._src.formats.base import (
    DistributedWriter,
    Format,
    StoreWriter,
    WritableFormat,
    writable_formats,
)
from orbit_ckpt._src.formats.writing import WriteRequest
from orbit_ckpt._src.pytree.engine import MemoryOptions, TreeIO
from orbit_ckpt._src.pytree.save.expected import expect_meshes
from orbit_ckpt._src.runtime.checks import (
    as_flag,
    check_callable,
    check_executor,
    check_int,
    check_mapping,
    show,
)
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.path import (
    PathLike,
    check_outside,
    resolve_path,
    storage_errors,
)
from orbit_ckpt._src.transform.engine import Rule
from orbit_ckpt._src.transform.expected_mesh import ExpectedMesh, as_expected_meshes
from orbit_ckpt._src.transform.patterns import PatternMap, Patterns
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.type_handlers.lazy import LazyArray, read_ahead

_logger = logging.getLogger(__name__)
_MAX_BYTES = 1 << 28
ORBIT = "orbit"
"""What `convert(to=...)` calls the format of this library."""

Progress = Callable[[int, int], object]
"""Called with the bytes that have gone through so far, and how many there are."""


def convert(  # noqa: PLR0913 - all optional, each about one thing
    src: PathLike,
    dst: PathLike,
    *,
    to: str = ORBIT,
    only: Patterns = None,
    skip: Patterns = None,
    transforms: Sequence[Rule] = (),
    cast: PatternMap[object] | DTypeLike | None = None,
    custom_metadata: Mapping[str, object] | None = None,
    overwrite: bool = False,
    max_bytes: int = _MAX_BYTES,
    max_shard_bytes: int | None = None,
    inline: Patterns = None,
    progress: Progress | None = None,
    reader: Format | None = None,
    expected_meshes: Sequence[object] = (),
    executor: Executor | None = None,
) -> None:
    """Copy a checkpoint into another format without using a device.

    Arrays are copied in parts, so the checkpoint may be larger than memory; only leaves that rules
    compute are held whole. The result appears when it is complete.

    Args:
        src: A checkpoint of any format that `load` reads.
        dst: Where to write. For `"safetensors"`, a path that ends in `.safetensors` is a single
            file, any other a directory as on Hugging Face. For `"flax"` it is a file, for `"t5x"`
            the directory of a step, `checkpoint_<step>`.
        to: `"orbit"`, `"safetensors"`, `"flax"`, `"t5x"`, or the `writes_as` of a plug-in.
        only: Patterns of leaves to copy, as for `load`.
        skip: Patterns of leaves not to copy.
        transforms: Rules that rename, merge, split or compute leaves.
        cast: A dtype, or dtypes by patterns such as `{"params/**": jnp.bfloat16}`, for numbers of
            the dtype's kind.
        custom_metadata: A JSON object to store with the copy; its keys are added to, or replace,
            those of the source. Formats without a place for metadata omit it. Metadata of the
            source that is not a JSON object is copied only to `"orbit"`, if this is not given;
            otherwise a warning is logged.
        overwrite: Whether to replace an existing copy; a directory of safetensors or T5X is never
            replaced.
        max_bytes: Approximate number of bytes to hold at once.
        max_shard_bytes: For a directory of safetensors: size above which a new file is started.
        inline: For `"t5x"`: patterns of arrays to write into the file `checkpoint`, as T5X does
            with arrays that are not partitioned; together at most a quarter of `max_bytes`.
        progress: Called occasionally with the bytes of arrays copied so far and their total.
        reader: The format of `src`, as for `load`.
        expected_meshes: For `"orbit"`: meshes that the copy will be loaded on, as for `save`; a
            leaf has the partition spec that it was saved with. Others keep the size of chunks.
        executor: Where to read and write arrays, as for `verify`; its workers see both paths.
            Leaves that rules compute are written by this process.

    Raises:
        CheckpointNotFoundError: There is no checkpoint; the message says what exists instead.
        CheckpointExistsError: `dst` exists.
        UnsupportedLeafError: The format cannot hold some leaves; names them, nothing was written.
        CorruptionError: Stored data is missing or damaged; nothing was left behind.
        ValueError: The format is unknown or has no such option, or `dst` is inside `src`.

    Example:
        >>> orbit_ckpt.save("run/step_4", {"w": np.ones((2, 3)), "step": 4})
        >>> orbit_ckpt.convert("run/step_4", "run/w.safetensors", to="safetensors", skip="step")
        >>> orbit_ckpt.load("run/w.safetensors")["w"].shape
        (2, 3)
    """
    writer = _writer_of(to)
    check_int("max_bytes", max_bytes, least=1)
    is_overwrite = as_flag("overwrite", overwrite)
    check_callable("progress", progress, "Give one that takes the bytes done and all of them.")
    if max_shard_bytes is not None:
        check_int("max_shard_bytes", max_shard_bytes, least=1)
    check_patterns({"inline": inline})
    _check_only_for("t5x", to, "inline", is_given=inline is not None)
    meshes = as_expected_meshes(expected_meshes)
    _check_only_for(ORBIT, to, "expected_meshes", is_given=bool(meshes))
    check_executor(executor)
    if not (executor is None or writer is None or _uses_executor(writer)):
        raise ValueError(f"to={to!r} is written by this process alone; leave executor out.")
    check_mapping("custom_metadata", custom_metadata, "Give {'name': 'value'}, for example.")
    path = resolve_path(dst)
    check_outside(path, resolve_path(src))
    tree = load(
        src,
        only=only,
        skip=skip,
        transforms=transforms,
        cast="same_kind" if cast is None else cast,
        lazy=True,
        reader=reader,
    )
    if executor is None:  # whose workers read in parallel
        flat = flatten(tree)
        tree = flat.unflatten(read_ahead(flat.values, max_bytes // 4))
    if progress is not None:
        tree = _watched(tree, progress)
    found = metadata(src, reader=reader).custom_metadata
    is_object = isinstance(found, Mapping)
    kept = typing.cast(Mapping[str, object], found if is_object else {})
    merged = {**kept, **(custom_metadata or {})}
    other = None if is_object or custom_metadata else found
    request = WriteRequest(
        path, tree, merged, max_bytes, max_shard_bytes, is_overwrite, inline, executor
    )
    with storage_errors(request.path, "writing", "Nothing was left behind."):
        if writer is None:
            _save(request, other, meshes)
        elif not (directory_of(request.path).has_local_files or _writes_to_stores(writer)):
            raise ValueError(f"{request.path}: {to} is written to local paths only")
        else:
            writer.write(request)
            if other is not None:
                what = "its custom metadata are left out, they are no JSON object"
                _logger.warning("%s: %s: %r", src, what, other)
    _logger.info("Converted %s to %s (%s)", src, dst, to)


def rechunk(  # noqa: PLR0913 - all optional, each about one thing
    src: PathLike,
    dst: PathLike,
    expected_meshes: Sequence[object],
    *,
    overwrite: bool = False,
    max_bytes: int = _MAX_BYTES,
    progress: Progress | None = None,
    reader: Format | None = None,
    executor: Executor | None = None,
) -> None:
    """Copy a checkpoint with chunks that suit loads on some meshes, without using a device.

    Args:
        src: A checkpoint of any format that `load` reads.
        dst: Where to write.
        expected_meshes: The meshes, as for `save`; a leaf has the partition spec that it was saved
            with, unless an `ExpectedMesh` has another one for it.
        overwrite: Whether to replace an existing checkpoint.
        max_bytes: Approximate number of bytes to hold at once.
        progress: Called occasionally with the bytes of arrays copied so far and their total.
        reader: The format of `src`, as for `load`.
        executor: Where to read and write arrays, as for `verify`; its workers see both paths.

    Raises:
        CheckpointNotFoundError: There is no checkpoint; the message says what exists instead.
        CheckpointExistsError: `dst` exists.
        CorruptionError: Stored data is missing or damaged; nothing was left behind.
        TypeError: `expected_meshes` has something else than meshes.

    Example:
        >>> from orbit_ckpt.transform import ExpectedMesh
        >>> orbit_ckpt.save("run/step_6", {"w": np.ones((1024, 1024))})
        >>> serve = ExpectedMesh({"model": 8}, {"w": (None, "model")})
        >>> orbit_ckpt.rechunk("run/step_6", "run/serve", [serve])
        >>> orbit_ckpt.metadata("run/serve").tree["w"].storage.chunk_shape
        (1024, 128)
    """
    convert(
        src,
        dst,
        overwrite=overwrite,
        max_bytes=max_bytes,
        progress=progress,
        reader=reader,
        expected_meshes=expected_meshes,
        executor=executor,
    )


def _writer_of(to: str) -> WritableFormat | None:
    """Return the format to write, None for that of this library.

    Raises:
        ValueError: There is none of this name.
    """
    if to == ORBIT:
        return None
    writers = writable_formats()
    names = (ORBIT, *sorted(writers))
    if to not in names:  # which may be of any type
        raise ValueError(f"to is {show(to)}; give one of {', '.join(map(repr, names))}.")
    return writers[to]


def _check_only_for(only: str, to: str, option: str, *, is_given: bool) -> None:
    """Check that an option of one format is not given for another one.

    Raises:
        ValueError: It is; names both formats.
    """
    if is_given and to != only:
        raise ValueError(f"{option} is for to={only!r} only, found to={to!r}; leave it out.")


def _uses_executor(writer: WritableFormat) -> bool:
    return isinstance(writer, DistributedWriter) and writer.uses_executor


def _writes_to_stores(writer: WritableFormat) -> bool:
    return isinstance(writer, StoreWriter) and writer.writes_to_stores


def _watched(tree: object, progress: Progress) -> object:
    """Return a tree whose lazy arrays report how many bytes of all of them have been read."""
    flat = flatten(tree)
    total = sum(leaf.nbytes for leaf in flat.values if isinstance(leaf, LazyArray))
    done = 0
    lock = threading.Lock()

    def advance(nbytes: int) -> None:
        nonlocal done
        with lock:  # writers read several arrays at once
            done += nbytes
            progress(min(done, total), total)

    def watch(leaf: object) -> object:
        if not isinstance(leaf, LazyArray):
            return leaf
        return type(leaf)(replace(leaf.leaf, progress=advance))

    return flat.unflatten(list(map(watch, flat.values)))


def _save(request: WriteRequest, other: object, meshes: Sequence[ExpectedMesh]) -> None:
    """Save in this library's format.

    Args:
        request: What to save.
        meshes: Meshes that it will be loaded on.
        other: Custom metadata of the tree that is not a JSON object, which a step cannot hold.
    """
    if request.max_shard_bytes is not None:
        raise ValueError("max_shard_bytes is for a directory of safetensors only; leave it out")
    memory = MemoryOptions(write_concurrent_bytes=request.max_bytes)
    trees = TreeIO(memory=memory, executor=request.executor)
    kept = dict(request.metadata) or None
    save_args = expect_meshes(request.tree, meshes, None) if meshes else None
    item = trees.item(request.tree, save_args, kept if other is None else other)
    save = SaveRequest(request.path, item, overwrite=request.overwrite, custom_metadata=kept)
    save_now(save, SessionOptions())
