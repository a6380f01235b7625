"""Copy a checkpoint as it is, or from any readable format into any writable one.

A copy appears complete and verified, or not at all.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import typing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from numpy.typing import DTypeLike

from orbit_ckpt._src.checkpointer.api import load
from orbit_ckpt._src.checkpointer.file_copies import copy_here, copy_there
from orbit_ckpt._src.checkpointer.inspect import metadata
from orbit_ckpt._src.checkpointer.options import SessionOptions
from orbit_ckpt._src.checkpointer.save import SaveRequest, save_now
from orbit_ckpt._src.checkpointer.wrong_arguments import check_patterns
from orbit_ckpt._src.errors import CheckpointNotFoundError, CorruptionError, VersionError
from orbit_ckpt._src.formats.base import (
    DistributedWriter,
    Format,
    StoreWriter,
    WritableFormat,
    allows_linked_files,
    writable_formats,
)
from orbit_ckpt._src.formats.locate import Kind, locate
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
from orbit_ckpt._src.storage.amend import replacing_item
from orbit_ckpt._src.storage.atomic import AtomicityMode
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.integrity import has_lost_manifest
from orbit_ckpt._src.storage.layout import MANIFEST
from orbit_ckpt._src.storage.path import (
    PathLike,
    check_outside,
    explain_no_checkpoint,
    resolve_path,
    storage_errors,
)
from orbit_ckpt._src.transform.engine import Rule
from orbit_ckpt._src.transform.expected_mesh import ExpectedMesh, as_expected_meshes
from orbit_ckpt._src.transform.patterns import PatternMap, Patterns
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.type_handlers.lazy import LazyArray, read_ahead
from orbit_ckpt._src.verify.report import Damage
from orbit_ckpt._src.verify.verifier import verify_files

_logger = logging.getLogger(__name__)
_MAX_BYTES = 1 << 28
ORBIT = "orbit"
"""What `convert(to=...)` calls the format of this library."""

Progress = Callable[[int, int], object]
"""Called with the bytes that have gone through so far, and how many there are."""


def copy_checkpoint(
    source: Path,
    destination: Path,
    *,
    overwrite: bool = False,
    check: bool = True,
    progress: Callable[[int, int], object] | None = None,
    executor: Executor | None = None,
) -> int:
    """Copy a checkpoint; return its size in bytes.

    Before the copy gets its name, its files are read back and compared with the data read from the
    source.

    Args:
        source: The checkpoint.
        destination: Path of the copy; its parents are created.
        overwrite: Whether to replace a checkpoint there.
        check: Whether to `verify` the copy too, which detects damage already in the source.
        progress: Called with the bytes copied and compared so far and their total; not called for
            a source in a store, where the total is unknown.
        executor: Where to copy, compare and verify; None for this process.

    Raises:
        CheckpointNotFoundError: The source is not a checkpoint.
        CheckpointExistsError: The destination exists and `overwrite` is not set.
        ValueError: The source is a single file or a part of another program's checkpoint, or the
            destination is inside it.
        CorruptionError: The copy differs from the source, or the source is damaged.
        VersionError: The source has a version that cannot be verified.
        StorageError: The storage failed; nothing was left behind.
    """
    located = locate(source)
    foreign = located.reader
    if foreign is not None and source.is_file():
        raise ValueError(
            f"{source} is one file, a checkpoint of {foreign.name}; copy it as other files are."
        )
    located.check()
    if foreign is None and located.kind is Kind.RUN:
        advice = "Give one step of a run, or another directory that was saved to."
        raise CheckpointNotFoundError(explain_no_checkpoint(source, advice))
    check_outside(destination, source)
    if destination == source:
        raise ValueError(f"{source} would be copied onto itself; give another destination.")
    advice = f"Check that {destination.parent} is a writable directory with space left."
    with storage_errors(source, f"copying to {destination}", advice):
        origin = directory_of(source)
        sizes = origin.files_to_copy(allow_linked_files=allows_linked_files(foreign))
        done, total = 0, 2 * sum(sizes.values()) if origin.knows_sizes else None

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if progress is not None and total is not None:
                progress(min(done, total), total)

        begun = directory_of(destination).begin_save(overwrite=overwrite, mode=AtomicityMode.AUTO)
        with begun as directory:
            copied = directory_of(directory.path)
            copy = copy_here if executor is None else partial(copy_there, executor=executor)
            differing = copy(source, sizes, copied, directory.path, advance)
            nbytes = done // 2  # each byte was copied and compared
            if differing is not None:
                raise _differs(source / differing, destination)
            if check:
                _verify(directory.path, source, foreign, executor)
            with replacing_item(directory.final) if overwrite else contextlib.nullcontext():
                directory.commit()
    return nbytes


def _verify(copied: Path, source: Path, foreign: Format | None, executor: Executor | None) -> None:
    if foreign is not None and foreign.sniff(copied) is not None:
        raise ValueError(f"{source} is a part of a checkpoint of {foreign.name}; copy all of it.")
    findings = verify_files(copied, foreign, executor)
    damage = findings.damage
    if foreign is None and has_lost_manifest(source):  # the copy has none either
        damage = [Damage(source, "it is missing", str(source / MANIFEST)), *damage]
    if damage:
        more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
        shown = str(damage[0]).replace(str(copied), str(source))
        raise CorruptionError(
            f"{source} is damaged: {shown}{more}. Copy an intact checkpoint, or copy this one as "
            "it is with --no-verify."
        )
    if findings.unverifiable:
        shown = str(findings.unverifiable[0]).replace(str(copied), str(source))
        raise VersionError(
            f"{source} cannot be verified: {shown} Or copy it unverified, with --no-verify."
        )


def _differs(file: Path, destination: Path) -> CorruptionError:
    return CorruptionError(
        f"{file}: the copy in {destination} does not have the bytes that were read. Nothing was "
        "left there; check the storage and copy again.",
        file=str(file),
    )


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
    writers = writable_formats()
    names = (ORBIT, *sorted(writers))
    if to not in names:
        raise ValueError(f"to is {show(to)}; give one of {', '.join(map(repr, names))}.")
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
    if not (executor is None or to == ORBIT or _uses_executor(writers[to])):
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
        if to == ORBIT:
            _save(request, other, meshes)
        elif not (directory_of(request.path).has_local_files or _writes_to_stores(writers[to])):
            raise ValueError(f"{request.path}: {to} is written to local paths only")
        else:
            writers[to].write(request)
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
