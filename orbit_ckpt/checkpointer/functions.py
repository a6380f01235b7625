"""Save and load a tree with one call."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from orbit_ckpt.arrays.sharding import ShardingResolver
from orbit_ckpt.checkpointer.checkpointer import Checkpointer
from orbit_ckpt.checkpointer.options import SessionOptions
from orbit_ckpt.checkpointer.saving import SaveHandle, SaveRequest, begin_save
from orbit_ckpt.items.pytree import PyTreeHandler, PyTreeMetadataOptions, PyTreeSaveArgs
from orbit_ckpt.metadata.values import TreeMetadata
from orbit_ckpt.pytree.restore import RestoreRequest
from orbit_ckpt.storage.path import resolve_path
from orbit_ckpt.transform.patterns import Pattern
from orbit_ckpt.transform.rules import Rule

_logger = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]


def save(
    path: PathLike,
    tree: object,
    *,
    overwrite: bool = False,
    custom_metadata: Mapping[str, object] | None = None,
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

    Raises:
        CheckpointExistsError: The path exists and `overwrite` is not set.
        UnsupportedLeafError: Some leaves cannot be saved; nothing was written.
        NameCollisionError: Key names, joined by dots, do not tell two leaves apart.
        StorageError: The storage refused a write; nothing was left behind.

    Example:
        >>> import orbit_ckpt, numpy as np
        >>> orbit_ckpt.save("run/step_1", {"w": np.ones((2, 3)), "step": 1})
        >>> orbit_ckpt.load("run/step_1")["step"]
        1
    """
    args = PyTreeSaveArgs(tree, custom_metadata=custom_metadata)
    Checkpointer(_handler()).save(path, args=args, force=overwrite, custom_metadata=custom_metadata)


def save_async(
    path: PathLike,
    tree: object,
    *,
    overwrite: bool = False,
    custom_metadata: Mapping[str, object] | None = None,
) -> SaveHandle:
    """Begin to save a pytree; when this returns its leaves may be changed, deleted or donated.

    The checkpoint appears once it is durable; `result()` of what is returned waits for that.
    Several saves may go on at once. The interpreter does not end before they have ended.

    Args:
        path: As for `save`.
        tree: What to save.
        overwrite: As for `save`.
        custom_metadata: As for `save`.

    Raises:
        CheckpointExistsError: The path exists and `overwrite` is not set.
        UnsupportedLeafError: Some leaves cannot be saved; nothing was written.
        NameCollisionError: Key names, joined by dots, do not tell two leaves apart.

    Example:
        >>> handle = orbit_ckpt.save_async("run/step_2", {"w": np.ones((2, 3)), "step": 2})
        >>> handle.result()
    """
    request = SaveRequest(
        resolve_path(path),
        {"args": PyTreeSaveArgs(tree, custom_metadata=custom_metadata)},
        overwrite=overwrite,
        custom_metadata=custom_metadata,
    )
    return begin_save(_handler(), request, SessionOptions())


def load(
    path: PathLike,
    like: object = None,
    *,
    only: Pattern | None = None,
    skip: Pattern | None = None,
    transforms: Sequence[Rule] = (),
    strict: bool = True,
    sharding: jax.sharding.Sharding | None = None,
) -> Any:  # a tree of any type
    """Load a pytree saved by orbit_ckpt or Orbax.

    Without a target every leaf comes back as it was saved, JAX arrays on their recorded sharding
    if its devices are here, else on the default device.

    Args:
        path: A checkpoint, one step of a manager, or an item of either.
        like: Target: a tree of arrays, `jax.ShapeDtypeStruct`, scalars or leaf metadata whose
            structure, types, shapes, dtypes and shardings the result has. None for what was saved.
        only: Which leaves to load, a pattern such as `params/**`; see `transform.patterns`. Other
            leaves of the target stay as they are; without a target there are only these.
        skip: Which leaves not to load.
        transforms: Rules that rename, merge, split or compute leaves on their way; see
            `transform.rules`. `only` and `skip` are about the names that they make.
        strict: Whether shapes must be the saved ones; else arrays are padded with zeros or cut.
        sharding: Sharding of JAX arrays for which neither the target nor, on these devices, the
            checkpoint has one.

    Raises:
        CheckpointNotFoundError: There is no checkpoint; says what is there.
        IncompleteCheckpointError: The save did not finish.
        TransformError: Rules or patterns do not fit the checkpoint.
        TreeMismatchError: The target differs; lists every missing, unexpected and changed leaf.
        CorruptionError: Stored data is missing or damaged; names leaf, chunk and file.
    """
    request = RestoreRequest(
        target=like.tree if isinstance(like, TreeMetadata) else like,
        has_target=like is not None,
        typed=True,
        strict=strict,
        rich_types=True,
        rules=transforms,
        only=only,
        skip=skip,
    )
    resolver = ShardingResolver(fallback=sharding)
    restored = _handler().run_request(path, request, resolver=resolver)
    _logger.info("Restored %s", path)
    return restored


def metadata(path: PathLike) -> TreeMetadata:
    """Return what is known of a saved pytree without reading its arrays or touching a device.

    Args:
        path: As for `load`.

    Returns:
        `.tree` with the structure of the saved tree and `ArrayMetadata` (shape, dtype, sharding,
        storage), `ScalarMetadata` and `StringMetadata` for leaves, and `.custom_metadata`.

    Raises:
        CheckpointNotFoundError: There is no checkpoint; says what is there.
        IncompleteCheckpointError: The save did not finish.
    """
    return _handler().metadata(path)


def _handler() -> PyTreeHandler:
    return PyTreeHandler(pytree_metadata_options=PyTreeMetadataOptions(support_rich_types=True))
