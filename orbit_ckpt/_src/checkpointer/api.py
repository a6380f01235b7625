"""Save and load a tree with one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeVar,
    Unpack,
    overload,
)

import jax
from msgspec.structs import replace
from numpy.typing import DTypeLike

from orbit_ckpt._src.checkpointer.handle import SaveHandle
from orbit_ckpt._src.checkpointer.load_options import (
    AbstractTree,
    LoadOptions,
    PlanOptions,
    check_options,
    restore_options,
)
from orbit_ckpt._src.checkpointer.options import SessionOptions
from orbit_ckpt._src.checkpointer.save import SaveRequest, begin_save, decline_save, save_now
from orbit_ckpt._src.checkpointer.telemetry import reported_restore
from orbit_ckpt._src.checkpointer.wrong_arguments import (
    check_state_functions,
    check_tree,
    suggest,
    suggest_target,
)
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.metadata.values import TreeMetadata
from orbit_ckpt._src.progress import Progress
from orbit_ckpt._src.pytree.engine import MemoryOptions, TreeIO
from orbit_ckpt._src.pytree.restore.patterns import cast_on_save, casts_by_patterns
from orbit_ckpt._src.pytree.restore.target import Casting, Missing, Unexpected
from orbit_ckpt._src.runtime.checks import as_flag
from orbit_ckpt._src.storage.path import PathLike, resolve_path
from orbit_ckpt._src.transform.engine import Rule
from orbit_ckpt._src.transform.patterns import PatternMap, Patterns
from orbit_ckpt._src.transform.state import StateFunction, transform_state

if TYPE_CHECKING:
    from orbit_ckpt._src.pytree.restore.explain import RestorePlan

_TREES = TreeIO()
_OF_STEP = "give the directory of the step, such as 'runs/a/30'"
_suggest_names = suggest(force="overwrite", item="tree", items="tree", state="tree")

T = TypeVar("T")


@_suggest_names
def save(  # noqa: PLR0913 - all optional, each about one thing
    path: PathLike,
    tree: object,
    *,
    overwrite: bool = False,
    custom_metadata: Mapping[str, object] | None = None,
    cast: PatternMap[object] | DTypeLike | None = None,
    transforms: Sequence[StateFunction] = (),
    base: PathLike | None = None,
    progress: bool | Progress | None = None,
) -> None:
    """Save a pytree; it is durable when this returns.

    Leaves may be JAX arrays of any sharding, typed PRNG keys, numpy arrays, Python and numpy
    scalars, strings, bytes, and all types with a registered type handler.

    Args:
        path: Directory to create: relative, with `~`, or any `os.PathLike`.
        tree: What to save.
        overwrite: Whether to replace an existing checkpoint, which stays until the new one is
            complete.
        custom_metadata: A JSON object to store with the checkpoint.
        cast: A dtype, or dtypes by patterns such as `{"params/**": jnp.bfloat16}`, to which arrays
            of the same kind of number are cast as they are written.
        transforms: Functions that change the tree before it is saved, as in T5X: each receives the
            tree as nested dicts and a tree of `LeafInfo` like it, and returns both changed alike.
        base: An earlier checkpoint: chunks of arrays that it holds are not written again. Both are
            complete checkpoints by themselves, and can be deleted in any order.
        progress: True for a bar in terminals and notebooks, or a function that is called about ten
            times a second, on another thread, with the bytes written and their total.

    Raises:
        CheckpointExistsError: The path exists and `overwrite` is not set.
        UnsupportedLeafError: Some leaves cannot be saved, or not as the requested dtype; nothing is
            left behind.
        NameCollisionError: Two leaves have the same key names, joined by dots.
        StorageError: The storage refused a write; nothing was left behind.

    Example:
        >>> import orbit_ckpt, numpy as np
        >>> orbit_ckpt.save("run/step_1", {"w": np.ones((2, 3)), "step": 1})
        >>> orbit_ckpt.load("run/step_1")["step"]
        1
    """
    request = _save_request(path, tree, overwrite, custom_metadata, cast, transforms, base)
    save_now(replace(request, progress=progress), SessionOptions())


@_suggest_names
def save_async(
    path: PathLike,
    tree: object,
    *,
    overwrite: bool = False,
    custom_metadata: Mapping[str, object] | None = None,
    cast: PatternMap[object] | DTypeLike | None = None,
    transforms: Sequence[StateFunction] = (),
    base: PathLike | None = None,
) -> SaveHandle:
    """Save a pytree in the background; its leaves may be changed, deleted or donated at once.

    The checkpoint appears once it is durable; `result()` of the returned handle waits for that.
    Several saves may be in progress at once. The interpreter does not exit before they have ended.

    Args:
        path: As for `save`.
        tree: What to save.
        overwrite: As for `save`.
        custom_metadata: As for `save`.
        cast: As for `save`.
        transforms: As for `save`.
        base: As for `save`.

    Raises:
        CheckpointExistsError: The path exists and `overwrite` is not set.
        UnsupportedLeafError: Some leaves cannot be saved, or not as the requested dtype; nothing is
            left behind.
        NameCollisionError: Two leaves have the same key names, joined by dots.

    Example:
        >>> handle = orbit_ckpt.save_async("run/step_2", {"w": np.ones((2, 3)), "step": 2})
        >>> handle.result()
    """
    request = _save_request(path, tree, overwrite, custom_metadata, cast, transforms, base)
    return begin_save(request, SessionOptions())


def _save_request(
    path: PathLike,
    tree: object,
    overwrite: bool,
    custom_metadata: Mapping[str, object] | None,
    cast: PatternMap[object] | DTypeLike | None,
    transforms: Sequence[StateFunction],
    base: PathLike | None,
) -> SaveRequest:
    place = resolve_path(path)
    try:
        check_tree("tree", tree, instead="the tree itself, as in save(path, {'w': array})")
        tree, save_args = prepare_tree(tree, cast, transforms)
    except Exception as error:  # raised again once the other processes know
        decline_save(place, error, SessionOptions())
        raise
    return SaveRequest(
        place,
        _TREES.item(tree, save_args, custom_metadata),
        overwrite=as_flag("overwrite", overwrite),
        custom_metadata=custom_metadata,
        is_incremental=base is not None,
        base=None if base is None else resolve_path(base),
    )


def prepare_tree(
    tree: object,
    cast: PatternMap[object] | DTypeLike | None,
    transforms: Sequence[StateFunction],
) -> tuple[object, object]:
    """Return the tree that `save` writes for its options, and its save arguments or None.

    Raises:
        TypeError: An option has the wrong type.
        TransformError: A pattern matches nothing, or a function returned trees that differ.
    """
    check_state_functions(transforms)
    if transforms:
        tree = transform_state(tree, transforms)
    casts = None if cast is None else casts_by_patterns(cast)
    return tree, cast_on_save(tree, casts) if casts else None


@overload
def load(
    path: PathLike,
    like: TreeMetadata | AbstractTree | None = None,
    *,
    report: Literal[False] = False,
    **options: Unpack[LoadOptions],
) -> Any: ...
@overload
def load(
    path: PathLike,
    like: TreeMetadata | AbstractTree | None = None,
    *,
    report: Literal[True],
    **options: Unpack[LoadOptions],
) -> tuple[Any, RestorePlan]: ...
@overload
def load(
    path: PathLike, like: T, *, report: Literal[False] = False, **options: Unpack[LoadOptions]
) -> T: ...
@overload
def load(
    path: PathLike, like: T, *, report: Literal[True], **options: Unpack[LoadOptions]
) -> tuple[T, RestorePlan]: ...
@overload
def load(
    path: PathLike, like: object = None, *, report: bool, **options: Unpack[LoadOptions]
) -> Any: ...
@suggest_target("like", step=_OF_STEP)
def load(  # noqa: PLR0913 - all optional, each about one thing
    path: PathLike,
    like: object = None,
    *,
    only: Patterns = None,
    skip: Patterns = None,
    transforms: Sequence[Rule] = (),
    missing: Missing = "error",
    unexpected: Unexpected = "error",
    fallback: object = None,
    cast: Casting | PatternMap[object] | DTypeLike = "same_kind",
    strict: bool = True,
    sharding: jax.sharding.Sharding | jax.Device | PatternMap[jax.sharding.Sharding] | None = None,
    map_leaf: Callable[[Any, str], object] | None = None,
    report: bool = False,
    lazy: bool = False,
    share_reads: bool = False,
    reader: Format | None = None,
    memory_limit: int | None = None,
    progress: bool | Progress | None = None,
) -> Any:  # a tree of any type
    """Load a pytree saved by orbit_ckpt, Orbax or another program.

    Without a target every leaf is restored as it was saved, JAX arrays with their recorded sharding
    if its devices exist here, otherwise on the default device.

    Args:
        path: A checkpoint, one step of a manager, or an item of either; or a file or directory of
            another format, such as safetensors.
        like: Target: a tree of arrays, `jax.ShapeDtypeStruct`, scalars or leaf metadata that gives
            the structure, types, shapes, dtypes and shardings of the result. None restores the tree
            as saved.
        only: Patterns of leaves to load, such as `params/**`; a leaf must match one. See
            `transform.patterns`. Other leaves of the target keep their values; without a target
            they are absent, with PLACEHOLDER for list elements before a loaded one.
        skip: Patterns of leaves not to load.
        transforms: Rules that rename, merge, split or compute leaves; see `orbit_ckpt.transform`.
            All other patterns refer to the names that they produce.
        missing: What to do with leaves of the target that the checkpoint lacks: `"error"`;
            `"target"`, keep the target's leaf, which must be a value; or `"skip"`, use PLACEHOLDER.
        unexpected: What to do with leaves of the checkpoint that the target lacks: `"error"`, or
            `"ignore"`, do not read them.
        fallback: A tree with leaves for those that the checkpoint lacks; they are converted, cast
            and placed like loaded ones. Its other leaves are ignored.
        cast: The allowed casts to the target's dtypes: `"exact"`, none; `"same_kind"`, within a
            kind of number or to a more general one; `"unsafe"`, all whose values fit. Or a dtype
            for all arrays of its kind of number, such as `jnp.bfloat16`, or dtypes by patterns,
            `{"params/**": jnp.bfloat16}`.
        strict: Whether shapes must equal the saved ones; otherwise arrays are zero-padded or
            truncated.
        sharding: Where to place arrays, overriding the target and the checkpoint: a sharding or
            device for all of them, or shardings by patterns, of which the first match counts and
            one must match; see `transform.partition`. It applies to arrays saved from JAX, to all
            arrays of other programs' formats, and to leaves that the target wants as JAX arrays.
            Arrays saved from NumPy, scalars and strings keep their type.
        map_leaf: Called with every loaded leaf and its name, the keys joined by slashes; its result
            replaces the leaf.
        report: Whether to return a report too.
        lazy: Whether array leaves are returned as `LazyArray`, which are read on access and can be
            saved without being read first. The checkpoint must exist until then. Scalars, strings
            and leaves that rules compute are read at once; a report counts all leaves as read.
        share_reads: Whether processes of `jax.distributed` that need the same part of an array each
            read pieces of it and send them to one another over the devices' network, so that it is
            read from storage once. All processes with devices in the mesh must load the same
            leaves. It pays where that network is faster than the storage.
        reader: The format to read, which may have its own options, such as those of
            `orbit_ckpt.t5x`; None detects it.
        memory_limit: Most bytes of host memory, besides the result, for data being read, cast or
            computed; a leaf that needs more is loaded alone. None for 64 MiB per core, and no limit
            on data read directly into the result. Also the most bytes of chunks that lazy arrays
            keep between slices, by default 256 MiB.
        progress: As for `save`, with the bytes read from storage.

    Returns:
        The tree; with `report` a tuple of the tree and a `RestorePlan`. For a type checker it has
        the type of the target, if that holds arrays; of abstract arrays, or without a target, the
        type is unknown.

    Raises:
        CheckpointNotFoundError: There is no checkpoint; the message says what exists instead.
        IncompleteCheckpointError: The save did not finish.
        TransformError: Rules or patterns do not fit the checkpoint.
        TreeMismatchError: The target differs; lists every missing, unexpected and changed leaf.
        CorruptionError: Stored data is missing or damaged; names leaf, chunk and file.
        ProcessFailedError: Reads are shared, and another process could not read its pieces.
    """
    place = resolve_path(path)
    options = restore_options(
        like,
        only=only,
        skip=skip,
        transforms=transforms,
        missing=missing,
        unexpected=unexpected,
        fallback=fallback,
        cast=cast,
        strict=strict,
        sharding=sharding,
        map_leaf=map_leaf,
        lazy=lazy,
        share_reads=share_reads,
        reader=reader,
    )
    trees = _within(memory_limit)
    restore = trees.restore_and_explain if as_flag("report", report) else trees.restore
    with reported_restore(path, progress):
        return restore(place, options)


@suggest_target("like", step=_OF_STEP)
def plan(path: PathLike, like: object = None, **options: Unpack[PlanOptions]) -> RestorePlan:
    """Return what `load` would do with the same arguments; reads metadata only.

    Printed, it is a table that shows for every leaf of the result its source, what is done with it,
    and how many bytes are read.

    Args:
        path: As for `load`.
        like: As for `load`.
        **options: Those of `load`, except `map_leaf`, `report`, `lazy` and `share_reads`.

    Raises:
        CheckpointNotFoundError: There is no checkpoint; the message says what exists instead.
        TransformError: Rules or patterns do not fit the checkpoint.
        TreeMismatchError: The target differs; lists every missing, unexpected and changed leaf.

    Example:
        >>> from orbit_ckpt.transform import Rename
        >>> orbit_ckpt.save("run/step_3", {"w": np.ones((2, 3)), "step": 3})
        >>> print(orbit_ckpt.plan("run/step_3", transforms=[Rename("w", "kernel")]))
        target  source  action  shape          bytes read  over-read
        step    step    read    int64[]              12 B       1.00
        kernel  w       rename  float64[2, 3]        52 B       1.00
        2 of 2 leaves from the checkpoint; 0 of its leaves not read
        64 B to read; about 56 B of host memory
    """
    place = resolve_path(path)
    check_options("plan", options, PlanOptions)
    memory_limit = options.pop("memory_limit", None)
    return _within(memory_limit).explain(place, restore_options(like, **options))


def _within(memory_limit: int | None) -> TreeIO:
    """Return an engine with a limit on host memory for reading.

    Raises:
        TypeError: The limit is not an integer.
        ValueError: The limit is not positive.
    """
    if memory_limit is None:
        return _TREES
    if not isinstance(memory_limit, int) or isinstance(memory_limit, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
        raise TypeError(
            f"memory_limit: expected a whole number of bytes, found {memory_limit!r}. Give "
            "256 * 2**20 for 256 MiB, for example."
        )
    if memory_limit <= 0:
        raise ValueError(
            f"memory_limit must be positive, found {memory_limit}; it is a number of bytes, "
            "256 * 2**20 for 256 MiB for example."
        )
    return TreeIO(memory=MemoryOptions(read_concurrent_bytes=memory_limit))
