"""Compare the parameters of Orbax's public classes, methods and functions with ours.

A parameter that Orbax has and we lack fails the test, unless `LACKED` says why. So does another
default, unless `DEFAULTS` says why, and a parameter that Orbax takes at another position.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

pytestmark = pytest.mark.interop

MODULES = [
    *("", "args", "arrays", "checkpoint_args", "checkpoint_manager", "checkpoint_managers"),
    *("checkpoint_utils", "checkpointers", "future", "handlers", "logging", "metadata"),
    *("msgpack_utils", "multihost", "options", "path", "path.step", "serialization", "step"),
    *("transform_utils", "tree", "type_handlers", "utils"),
]
"""Modules of Orbax with public names; those that we lack are skipped."""

_TEMPORARY = "saves have no temporary path objects; `AtomicityOptions` say how one becomes visible"
_HOOK = "a hook of the base class of Orbax's random key handlers, which ours do not have"
_NO_CANCEL = "a save in progress ends by itself; its error reaches the next call"
_ONE_VALUE = "its only parameter has another name; callers give it by position"

_CHECKPOINTERS = ("AsyncCheckpointer", "Checkpointer", "PyTreeCheckpointer", "StandardCheckpointer")

METHODS: Mapping[str, str] = {
    "AsyncCheckpointer.cancel": _NO_CANCEL,
    "ChainedFuture.cancel": _NO_CANCEL,
    "CommitFutureAwaitingContractedSignals.cancel": _NO_CANCEL,
    "Future.cancel": _NO_CANCEL,
    "NoopFuture.cancel": _NO_CANCEL,
    "StandardCheckpointer.cancel": _NO_CANCEL,
    **{
        f"{name}.{method}": _TEMPORARY
        for name in _CHECKPOINTERS
        for method in (
            "create_temporary_path",
            "synchronize_next_awaitable_signal_operation_id",
        )
    },
    **{
        f"{name}ShardingMetadata.{method}": "the form of a file is not part of the interface"
        for name in ("", "Named", "SingleDevice")
        for method in ("from_deserialized_dict", "to_serialized_string")
    },
    "ShardingMetadata.from_jax_sharding": "a method of the two kinds; this is their union",
    "ShardingMetadata.to_jax_sharding": "a method of the two kinds; this is their union",
    "BasePyTreeCheckpointHandler.get_param_names": "names of files are not part of the interface",
    "CompositeCheckpointHandler.metadata_from_temporary_paths": _TEMPORARY,
    **{
        f"{name}RandomKeyCheckpointHandler.{hook}": _HOOK
        for name in ("Jax", "Numpy")
        for hook in ("checkpoint_restore_args", "checkpoint_save_args", "post_restore")
    },
    **{
        f"{name}.from_shape_dtype_struct": "metadata describe what is stored"
        for name in ("ArrayMetadata", "ScalarMetadata")
    },
}
"""Methods that we lack, and why."""

LACKED: Mapping[str, str] = {
    "StorageMetadata(zarr_metadata)": "`compression` says what it adds",
    "is_empty_node(x)": _ONE_VALUE,
    "is_empty_or_leaf(x)": _ONE_VALUE,
}
"""Parameters that we lack, and why."""

_NONE = "None stands for an object with Orbax's defaults"
_ZARR3 = "zarr3 has a checksum in every chunk"
_OPTIONAL = "more may be left out here"

DEFAULTS: Mapping[str, str] = {
    "AsyncCheckpointer(async_options)": _NONE,
    "AsyncCheckpointer(multiprocessing_options)": _NONE,
    "BasePyTreeCheckpointHandler(array_metadata_validator)": "processes always compare records",
    "BasePyTreeCheckpointHandler(multiprocessing_options)": _NONE,
    "BasePyTreeCheckpointHandler(use_zarr3)": _ZARR3,
    "CheckpointInfo(metrics)": "may be left out",
    "CheckpointManagerOptions(multiprocessing_options)": _NONE,
    "Checkpointer(file_options)": _NONE,
    "Checkpointer(multiprocessing_options)": _NONE,
    "CompositeCheckpointHandler(composite_options)": _NONE,
    "JsonCheckpointHandler(multiprocessing_options)": _NONE,
    "ParamInfo(use_zarr3)": _ZARR3,
    "ProtoCheckpointHandler(multiprocessing_options)": _NONE,
    "PyTreeCheckpointHandler(array_metadata_validator)": "processes always compare records",
    "PyTreeCheckpointHandler(multiprocessing_options)": _NONE,
    "PyTreeCheckpointHandler(use_zarr3)": _ZARR3,
    "PyTreeCheckpointer(use_zarr3)": _ZARR3,
    "StandardCheckpointHandler(multiprocessing_options)": _NONE,
    "StandardCheckpointHandler(restore_concurrent_gb)": "the default limit depends on the cores",
    "StandardCheckpointHandler(save_concurrent_gb)": "2 GiB are fast enough",
    "StandardCheckpointer(async_options)": _NONE,
    "StandardCheckpointer(file_options)": _NONE,
    "StandardCheckpointer(multiprocessing_options)": _NONE,
    "is_supported_empty_value(pytree_metadata_options)": _NONE,
    "is_supported_type(pytree_metadata_options)": _NONE,
    **{
        f"{name}CheckpointHandler.async_save(args)": _OPTIONAL
        for name in ("BasePyTree", "Composite", "JaxRandomKey", "NumpyRandomKey")
    },
    **{
        f"{name}CheckpointHandler.restore(args)": _OPTIONAL
        for name in ("JaxRandomKey", "NumpyRandomKey")
    },
    "CheckpointManager.restore(step)": _OPTIONAL,
    "DecisionContext(is_saving_in_progress)": _OPTIONAL,
    "DecisionContext(multiprocessing_options)": _OPTIONAL,
    "DecisionContext(reached_preemption)": _OPTIONAL,
    "ScalarMetadata(dtype)": "always known",
    "ScalarMetadata(shape)": "always known",
    "ScalarMetadata(sharding)": "always known",
}
"""Parameters with another default, and why."""

_ARGS = "an args object is accepted in the place of the item or of its options"

POSITIONS: Mapping[str, str] = {
    "CompositeLogger.log_entry": "the names are those of AbstractLogger.log_entry",
    "BasePyTreeCheckpointHandler.restore": "given by name, as in Orbax's own code",
    **{
        f"{name}CheckpointHandler.async_save": _ARGS
        for name in ("BasePyTree", "Composite", "JaxRandomKey", "Json", "NumpyRandomKey", "Proto")
    },
    "JsonCheckpointHandler.save": _ARGS,
}
"""Functions whose parameters have other positions, and why."""


def pairs() -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """Yield what Orbax has, and what we have under the same name or None."""
    seen: set[str] = set()
    for module in MODULES:
        theirs = _module("orbax.checkpoint", module)
        ours = _module("orbit_ckpt", module)
        for name in sorted(_public(theirs)) if theirs is not None and ours is not None else ():
            value, mine = getattr(theirs, name), getattr(ours, name, None)
            if name in seen or mine is None:
                continue
            seen.add(name)
            yield name, value, mine
            for method in sorted(_public(value)) if inspect.isclass(value) else ():
                if callable(getattr(value, method)):
                    yield f"{name}.{method}", getattr(value, method), getattr(mine, method, None)


def _module(package: str, name: str) -> Any:
    found: Any = importlib.import_module(package)
    for part in filter(None, name.split(".")):
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(f"{package}.{name}")
            except ImportError:
                return None
    return found


def _public(owner: Any) -> list[str]:
    """Return the names of an owner's own classes, functions or methods."""
    if inspect.isclass(owner):
        built_in = set(dir(BaseException)) if issubclass(owner, BaseException) else set[str]()
        return [name for name in dir(owner) if not name.startswith("_") and name not in built_in]
    return [
        name
        for name in dir(owner)
        if not name.startswith("_")
        and callable(value := getattr(owner, name))
        and str(getattr(value, "__module__", "")).startswith("orbax.checkpoint")
    ]


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of built-in classes, such as exceptions
        return {}


def _named(parameters: Mapping[str, inspect.Parameter]) -> list[inspect.Parameter]:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [p for p in parameters.values() if p.kind not in variable and p.name != "self"]


def _positional(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [p.name for p in _named(parameters) if p.kind is not p.KEYWORD_ONLY]


def _show(default: object) -> str:
    return re.sub(r" at 0x\w+|orbax[\w.]*|orbit_ckpt[\w.]*", "", repr(default))


PAIRS = list(pairs())


def test_all_methods_of_classes_exist() -> None:
    lacked = {name for name, _, mine in PAIRS if mine is None}
    assert sorted(lacked - METHODS.keys()) == []


def test_all_parameters_are_accepted() -> None:
    lacked: set[str] = set()
    for name, theirs, mine in PAIRS:
        accepted = _parameters(mine) if mine is not None else _parameters(theirs)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        if mine is not None and (not takes_any or inspect.isclass(mine)):
            names = {p.name for p in _named(_parameters(theirs))}
            lacked |= {f"{name}({parameter})" for parameter in names - accepted.keys()}
    assert sorted(lacked - LACKED.keys()) == []


def test_defaults_are_the_same() -> None:
    others: set[str] = set()
    for name, theirs, mine in PAIRS:
        known = {} if mine is None else _parameters(mine)
        for parameter in _named(_parameters(theirs)):
            own = known.get(parameter.name)
            if own is not None and _show(own.default) != _show(parameter.default):
                others.add(f"{name}({parameter.name})")
    assert sorted(others - DEFAULTS.keys()) == []


def test_parameters_have_the_same_positions() -> None:
    moved: set[str] = set()
    for name, theirs, mine in PAIRS:
        wanted = _positional(_parameters(theirs))
        found = wanted if mine is None else _positional(_parameters(mine))
        if any(f"{name}({parameter})" in LACKED for parameter in wanted):
            continue
        if found[: len(wanted)] != wanted:
            moved.add(name)
    assert sorted(moved - POSITIONS.keys()) == []
