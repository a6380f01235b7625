"""Save and load a tree with one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, get_args

import jax
from numpy.typing import DTypeLike

from orbit_ckpt._src.arrays.sharding import as_sharding
from orbit_ckpt._src.checkpointer.options import SessionOptions
from orbit_ckpt._src.checkpointer.save import (
    SaveHandle,
    SaveRequest,
    begin_save,
    decline_save,
    save_now,
)
from orbit_ckpt._src.checkpointer.telemetry import reported_restore
from orbit_ckpt._src.checkpointer.wrong_arguments import (
    check_patterns,
    check_rules,
    check_state_functions,
    check_tree,
    suggest,
    suggest_target,
)
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.metadata.values import TreeMetadata
from orbit_ckpt._src.pytree.engine import MemoryOptions, TreeIO
from orbit_ckpt._src.pytree.restore.options import Casting, Missing, RestoreOptions, Unexpected
from orbit_ckpt._src.pytree.restore.patterns import cast_on_save, casts_by_patterns
from orbit_ckpt._src.runtime.checks import as_flag, check_callable, show
from orbit_ckpt._src.storage.path import PathLike, resolve_path
from orbit_ckpt._src.transform.engine import Rule
from orbit_ckpt._src.transform.patterns import Pattern, PatternMap, Patterns, compile_pattern
from orbit_ckpt._src.transform.state import StateFunction, transform_state

if TYPE_CHECKING:
    from orbit_ckpt._src.pytree.restore.explain import RestorePlan

_TREES = TreeIO()
_suggest_names = suggest(force="overwrite", item="tree", items="tree", state="tree")


class PlanOptions(TypedDict, total=False):
    """Options of `load` that a plan depends on; `load` describes them."""

    only: Patterns
    skip: Patterns
    transforms: Sequence[Rule]
    missing: Missing
    unexpected: Unexpected
    fallback: object
    cast: Casting | PatternMap[object] | DTypeLike
    strict: bool
    sharding: jax.sharding.Sharding | jax.Device | PatternMap[jax.sharding.Sharding] | None
    reader: Format | None
    memory_limit: int | None


class LoadOptions(PlanOptions, total=False):
    """All options of `load` but for the target and the report."""

    map_leaf: Callable[[Any, str], object] | None
    lazy: bool


@_suggest_names
def save(
    path: PathLike,
    tree: object,
    *,
    overwrite: bool = False,
    custom_metadata: Mapping[str, object] | None = None,
    cast: PatternMap[object] | DTypeLike | None = None,
    transforms: Sequence[StateFunction] = (),
) -> None:
    """Save a pytree; when this returns it is durable.

    Leaves may be JAX arrays of any sharding, typed PRNG keys, numpy arrays, Python and numpy
    scalars, strings, bytes, and whatever type handlers are registered for.

    Args:
        path: Directory to create: relative, with `~`, or any `os.PathLike`.
        tree: What to save.
        overwrite: Whether to replace an existing checkpoint, which stays until the new one is
            complete.
        custom_metadata: A JSON object to keep with the checkpoint.
        cast: A dtype, or dtypes by patterns, `{"params/**": jnp.bfloat16}`, to which arrays of the
            same kind of number are cast as they are written.
        transforms: Functions that change the tree before, as T5X takes them: each gets the tree as
            nested dicts and a tree of `LeafInfo` like it, and returns both changed alike.

    Raises:
        CheckpointExistsError: The path exists and `overwrite` is not set.
        UnsupportedLeafError: Some leaves cannot be saved, or not as the dtype asked for; nothing is
            left behind.
        NameCollisionError: Key names, joined by dots, do not tell two leaves apart.
        StorageError: The storage refused a write; nothing was left behind.

    Example:
        >>> import orbit_ckpt, numpy as np
        >>> orbit_ckpt.save("run/step_1", {"w": np.ones((2, 3)), "step": 1})
        >>> orbit_ckpt.load("run/step_1")["step"]
        1
    """
    request = _save_request(path, tree, overwrite, custom_metadata, cast, transforms)
    save_now(request, SessionOptions())


@_suggest_names
def save_async(
    path: PathLike,
    tree: object,
    *,
    overwrite: bool = False,
    custom_metadata: Mapping[str, object] | None = None,
    cast: PatternMap[object] | DTypeLike | None = None,
    transforms: Sequence[StateFunction] = (),
) -> SaveHandle:
    """Begin to save a pytree; when this returns its leaves may be changed, deleted or donated.

    The checkpoint appears once it is durable; `result()` of what is returned waits for that.
    Several saves may go on at once. The interpreter does not end before they have ended.

    Args:
        path: As for `save`.
        tree: What to save.
        overwrite: As for `save`.
        custom_metadata: As for `save`.
        cast: As for `save`.
        transforms: As for `save`.

    Raises:
        CheckpointExistsError: The path exists and `overwrite` is not set.
        UnsupportedLeafError: Some leaves cannot be saved, or not as the dtype asked for; nothing is
            left behind.
        NameCollisionError: Key names, joined by dots, do not tell two leaves apart.

    Example:
        >>> handle = orbit_ckpt.save_async("run/step_2", {"w": np.ones((2, 3)), "step": 2})
        >>> handle.result()
    """
    request = _save_request(path, tree, overwrite, custom_metadata, cast, transforms)
    return begin_save(request, SessionOptions())


def _save_request(
    path: PathLike,
    tree: object,
    overwrite: bool,
    custom_metadata: Mapping[str, object] | None,
    cast: PatternMap[object] | DTypeLike | None,
    transforms: Sequence[StateFunction],
) -> SaveRequest:
    place = resolve_path(path)
    try:
        check_tree("tree", tree, instead="the tree itself, as in save(path, {'w': array})")
        check_state_functions(transforms)
        if transforms:
            tree = transform_state(tree, transforms)
        casts = None if cast is None else casts_by_patterns(cast)
        save_args = cast_on_save(tree, casts) if casts else None
    except Exception as error:  # raised again once the other processes know
        decline_save(place, error, SessionOptions())
        raise
    return SaveRequest(
        place,
        _TREES.item(tree, save_args, custom_metadata),
        overwrite=as_flag("overwrite", overwrite),
        custom_metadata=custom_metadata,
    )


@suggest_target("like")
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
    reader: Format | None = None,
    memory_limit: int | None = None,
) -> Any:  # a tree of any type
    """Load a pytree saved by orbit_ckpt, Orbax or another program.

    Without a target every leaf comes back as it was saved, JAX arrays on their recorded sharding
    if its devices are here, else on the default device.

    Args:
        path: A checkpoint, one step of a manager, or an item of either; or a file or directory of
            another format, such as safetensors.
        like: Target: a tree of arrays, `jax.ShapeDtypeStruct`, scalars or leaf metadata whose
            structure, types, shapes, dtypes and shardings the result has. None for what was saved.
        only: Which leaves to load, a pattern such as `params/**` or several of which one has to
            match; see `transform.patterns`. Other leaves of the target stay as they are; without a
            target there are only these, and PLACEHOLDER for elements of lists before them.
        skip: Which leaves not to load.
        transforms: Rules that rename, merge, split or compute leaves on their way; see
            `orbit_ckpt.transform`. All other patterns are about the names that they make.
        missing: What becomes of leaves of the target that the checkpoint lacks: `"error"`;
            `"target"`, they stay as they are, which must be values; or `"skip"`, they become
            PLACEHOLDER.
        unexpected: What becomes of leaves of the checkpoint that the target lacks: `"error"`, or
            `"ignore"`, they are not read.
        fallback: A tree with leaves for those that the checkpoint lacks, which are converted, cast
            and placed as loaded ones are; others are not used.
        cast: Which casts to the target's dtypes are allowed: `"exact"`, none; `"same_kind"`, those
            within a kind of number or to a more general one; `"unsafe"`, all whose values fit. Or
            a dtype for all arrays of its kind of number, `jnp.bfloat16`, or dtypes by patterns,
            `{"params/**": jnp.bfloat16}`.
        strict: Whether shapes must be the saved ones; else arrays are padded with zeros or cut.
        sharding: Where to place arrays, before what the target and the checkpoint say: a sharding
            or a device for all of them, or shardings by patterns, of which the first that matches
            counts and one must; see `transform.partition`. It applies to arrays that were saved
            from JAX, to all arrays of other programs' formats, and to what the target wants as
            JAX arrays. Arrays saved from NumPy, scalars and strings stay what they are.
        map_leaf: Takes every loaded leaf and its name, its keys joined by slashes; what it returns
            takes the leaf's place.
        report: Whether to return what was done too.
        lazy: Whether leaves that are arrays come back as `LazyArray`, which are read when their
            values are asked for and can be saved without being read before. The checkpoint must be
            there until then. Scalars, strings and leaves that rules compute are read at once; a
            report counts all others as if they were, too.
        reader: The format to read it as, which may have options of its own, such as those of
            `orbit_ckpt.t5x`; None to find out.
        memory_limit: Most bytes of host memory that are used beside the result at once, for data
            that is being read, cast or computed with; a leaf that needs more is loaded alone. None
            for 64 MiB per core, and no limit on what is read straight into the result.

    Returns:
        The tree; with `report` a tuple of the tree and a `RestorePlan`.

    Raises:
        CheckpointNotFoundError: There is no checkpoint; says what is there.
        IncompleteCheckpointError: The save did not finish.
        TransformError: Rules or patterns do not fit the checkpoint.
        TreeMismatchError: The target differs; lists every missing, unexpected and changed leaf.
        CorruptionError: Stored data is missing or damaged; names leaf, chunk and file.
    """
    place = resolve_path(path)
    options = _restore_options(
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
        reader=reader,
    )
    trees = _within(memory_limit)
    restore = trees.restore_and_explain if as_flag("report", report) else trees.restore
    with reported_restore(path):
        return restore(place, options)


@suggest_target("like")
def plan(path: PathLike, like: object = None, **options: Unpack[PlanOptions]) -> RestorePlan:
    """Return what `load` would do with the same arguments; reads metadata only.

    Printed, it is a table: for every leaf of the result where it comes from, what is done with it,
    and how much is read for it.

    Args:
        path: As for `load`.
        like: As for `load`.
        **options: Those of `load`, except `map_leaf`, `report` and `lazy`.

    Raises:
        CheckpointNotFoundError: There is no checkpoint; says what is there.
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
    unknown = min(options.keys() - PlanOptions.__annotations__.keys(), default=None)
    if unknown is not None:
        raise TypeError(f"plan() got an unexpected keyword argument {unknown!r}")
    memory_limit = options.pop("memory_limit", None)
    return _within(memory_limit).explain(place, _restore_options(like, **options))


def _restore_options(like: object, **options: Unpack[LoadOptions]) -> RestoreOptions:
    """Return what the options of `load` ask for.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An option has a value that it cannot have.
    """
    casts, sharding = options.pop("cast", "same_kind"), options.pop("sharding", None)
    check_tree("like", like, instead="a tree of arrays or jax.ShapeDtypeStruct like the result")
    fallback = options.get("fallback")
    check_tree("fallback", fallback, instead="a tree with the leaves that may be missing")
    check_patterns({name: options.get(name) for name in ("only", "skip")})
    check_rules(options.get("transforms", ()))
    if "strict" in options:
        options["strict"] = as_flag("strict", options["strict"])
    if "lazy" in options:
        options["lazy"] = as_flag("lazy", options["lazy"])
    check_callable("map_leaf", options.get("map_leaf"), "Give one that takes a leaf and its name.")
    for name, values in _CHOICES.items():
        value: object = options.get(name, values[0])
        if value not in values:
            choices = ", ".join(map(repr, values))
            raise ValueError(f"{name} is {show(value)}; give one of {choices}.")
    policy = _POLICIES.get(casts) if isinstance(casts, str) else None
    return RestoreOptions(
        target=like.tree if isinstance(like, TreeMetadata) else like,
        match_leaf_types=True,
        cast_policy=policy or "same_kind",
        cast_rules={} if policy else casts_by_patterns(casts),
        sharding_rules=None if sharding is None else _shardings_by_patterns(sharding),
        **cast(Any, options),  # the others are fields by the same names
    )


def _shardings_by_patterns(sharding: object) -> PatternMap[jax.sharding.Sharding]:
    """Return what `sharding=` says, a single sharding as that of all leaves.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(sharding, Mapping):
        return {"**": as_sharding(sharding, "sharding")}
    given = cast(Mapping[Pattern, object], sharding)
    for pattern in given:
        compile_pattern(pattern)
    return {
        pattern: as_sharding(value, f"sharding[{pattern!r}]") for pattern, value in given.items()
    }


_POLICIES: Mapping[str, Casting] = {policy: policy for policy in get_args(Casting)}

_CHOICES = {
    "missing": get_args(Missing),
    "unexpected": get_args(Unexpected),
}


def _within(memory_limit: int | None) -> TreeIO:
    """Return the engine, limited to so many bytes of host memory for reading.

    Raises:
        TypeError: The limit is no whole number of bytes.
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
