"""Functions for type handlers and their users, under Orbax's names."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sized
from typing import Any, cast

import jax
import numpy as np

from orbit_ckpt._src.guards import is_list_or_tuple, is_mapping
from orbit_ckpt._src.storage.ocdbt import databases_below, is_ocdbt
from orbit_ckpt._src.storage.ocdbt_merge import merge_databases
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.text import warn_set
from orbit_ckpt._src.tree.build import is_namedtuple
from orbit_ckpt._src.type_handlers.array import ArrayHandler
from orbit_ckpt._src.type_handlers.builtin import built_in_handlers
from orbit_ckpt._src.type_handlers.numpy import NumpyHandler
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY
from orbit_ckpt._src.type_handlers.scalar import ScalarHandler

_logger = logging.getLogger(__name__)


def check_input_arguments(*args: Sized) -> None:
    """Check that the arguments of a type handler's method have one length, which is not 0.

    Raises:
        ValueError: Their lengths differ, or are 0.
    """
    lengths = {len(arg) for arg in args}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            f"The arguments of a type handler have lengths {[len(arg) for arg in args]}; give as "
            "many infos as values or arguments, and at least one."
        )


def is_supported_empty_value(value: object, pytree_metadata_options: object = None) -> bool:
    """Return whether a value is None or a container without children that a checkpoint keeps.

    Args:
        value: The value.
        pytree_metadata_options: `PyTreeMetadataOptions`; without rich types, namedtuples are none.
    """
    if is_namedtuple(value):
        return getattr(pytree_metadata_options, "support_rich_types", False) and not value
    return value is None or ((is_list_or_tuple(value) or is_mapping(value)) and not value)


def is_supported_type(value: object, pytree_metadata_options: object = None) -> bool:
    """Return whether a value can be saved without a custom type handler.

    Args:
        value: The value.
        pytree_metadata_options: See `is_supported_empty_value`.
    """
    types = tuple(ty for ty, _ in built_in_handlers())
    return isinstance(value, types) or is_supported_empty_value(value, pytree_metadata_options)


def is_ocdbt_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Return whether the arrays in a directory are in a database."""
    return is_ocdbt(resolve_path(path))


async def merge_ocdbt_per_process_files(
    directory: str | os.PathLike[str],
    ts_context: object,  # noqa: ARG001 - Orbax's signature
    use_zarr3: bool,  # noqa: ARG001 - as above
    enable_validation: bool = True,  # noqa: ARG001 - as above
    *,
    store_ocdbt_metadata_and_values_separately: bool = False,
) -> None:
    """Merge the databases that processes have written below a directory into one.

    Their files stay in place, because the merged database refers to them.

    Args:
        directory: The directory; nothing happens without databases of processes.
        ts_context: Ignored; the databases are read without TensorStore.
        use_zarr3: Ignored; arrays of both formats are merged.
        enable_validation: Ignored; two values for one key are always an error.
        store_ocdbt_metadata_and_values_separately: Ignored.

    Raises:
        StorageError: Two of the databases have a value for one key.
        CorruptionError: A database is damaged.
    """
    separately = store_ocdbt_metadata_and_values_separately
    reason = "a database has its index in one file"
    unused = {"store_ocdbt_metadata_and_values_separately": (separately, False, reason)}
    warn_set("merge_ocdbt_per_process_files", unused)
    path = resolve_path(directory)
    parts = databases_below(path)
    if not parts:
        _logger.warning("%s: there are no databases of processes to merge", path)
        return
    merge_databases(path, parts, ())


def register_standard_handlers_with_options(**kwargs: Any) -> None:
    """Register the handlers of numbers and arrays globally anew, with options.

    Args:
        **kwargs: Options that all of these handlers take. `use_ocdbt` and `ts_context` are ignored.
    """
    options: Mapping[str, Any] = {
        name: value for name, value in kwargs.items() if name not in ("use_ocdbt", "ts_context")
    }
    handlers: Mapping[type, Any] = {
        **dict.fromkeys((int, float, np.number), ScalarHandler),
        **dict.fromkeys((bytes, np.ndarray), NumpyHandler),
        cast(type, jax.Array): ArrayHandler,
    }
    for ty, handler in handlers.items():
        GLOBAL_TYPE_HANDLER_REGISTRY.add(ty, handler(**options), override=True)
