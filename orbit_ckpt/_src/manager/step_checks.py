"""Check the arguments of a manager: handlers, checkpointers, items and metrics."""

from __future__ import annotations

from collections.abc import Mapping

from orbit_ckpt._src.checkpointer.asynchronous import AsyncCheckpointer
from orbit_ckpt._src.checkpointer.checkpointer import Checkpointer
from orbit_ckpt._src.guards import is_list_or_tuple, is_mapping
from orbit_ckpt._src.items.arguments import CheckpointArgs
from orbit_ckpt._src.items.base import CheckpointHandler, check_handler
from orbit_ckpt._src.items.composite import Composite
from orbit_ckpt._src.items.json import JsonSaveArgs
from orbit_ckpt._src.manager.index import METRICS_ITEM
from orbit_ckpt._src.manager.options import CheckpointManagerOptions
from orbit_ckpt._src.metadata.user_json import plain_scalar
from orbit_ckpt._src.runtime.checks import show

Handlers = CheckpointHandler | Mapping[str, CheckpointHandler | None] | None


def with_metrics(args: Composite, metrics: Mapping[str, object]) -> Composite:
    """Add the metrics to the items.

    Raises:
        ValueError: An item already has the name of the metrics.
    """
    if METRICS_ITEM in args:
        raise ValueError("The metrics are both metrics= and the item 'metrics'; give one of them.")
    return Composite(**args, **{METRICS_ITEM: JsonSaveArgs(metrics)})


def check_handlers(handlers: object) -> None:
    """Check the `item_handlers` of a manager.

    Raises:
        TypeError: It is neither a handler nor handlers by item.
    """
    if is_mapping(handlers):
        for name, handler in handlers.items():
            if handler is not None:
                check_handler(f"item_handlers[{name!r}]", handler)
    elif handlers is not None:
        if is_list_or_tuple(handlers):
            found = show(handlers)
            raise TypeError(
                f"item_handlers must be a handler, or handlers by item, found {found}. "
                "Give {'state': StandardCheckpointHandler()}, for example."
            )
        check_handler("item_handlers", handlers)


def check_items(items: object) -> None:
    if isinstance(items, CheckpointArgs):
        raise ValueError(f"Found {type(items).__qualname__} for `items`; give it by name: args=...")


def handlers_of(
    checkpointers: Checkpointer | Mapping[str, Checkpointer], handlers: Handlers
) -> tuple[Handlers, bool]:
    """Return the handlers of checkpointers, and whether they save in the background.

    Raises:
        TypeError: One of them is not a checkpointer.
        ValueError: Handlers are given too.
    """
    if handlers is not None:
        raise ValueError("Give checkpointers or item_handlers, not both.")
    given: object = checkpointers
    for name, value in given.items() if is_mapping(given) else [("", given)]:
        _check_checkpointer(f"checkpointers[{name!r}]" if name else "checkpointers", value)
    if isinstance(checkpointers, Mapping):
        is_async = all(isinstance(c, AsyncCheckpointer) for c in checkpointers.values())
        return {name: c.handler for name, c in checkpointers.items()}, is_async
    return checkpointers.handler, isinstance(checkpointers, AsyncCheckpointer)


def _check_checkpointer(name: str, value: object) -> None:
    if isinstance(value, Checkpointer):
        return
    if isinstance(value, CheckpointManagerOptions):
        advice = "Give options by name: options=CheckpointManagerOptions(...)."
    else:
        advice = "Give Checkpointer(handler), or the handler itself as item_handlers=."
    raise TypeError(f"{name} must be a Checkpointer, found {show(value)}. {advice}")


def check_metrics(metrics: object) -> None:
    """Check the metrics of a step; None passes.

    Raises:
        TypeError: They have no names.
    """
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(
            f"metrics must be a dict, found {show(metrics)}. Give names too: "
            "metrics={'loss': 0.5}."
        )


def plain_metrics(metrics: Mapping[str, object]) -> dict[str, object]:
    """Convert numpy and JAX scalars in metrics to Python numbers."""

    def plain(value: object) -> object:
        if is_mapping(value):  # JAX would sort the names
            return {name: plain(field) for name, field in value.items()}
        if is_list_or_tuple(value):
            return list(map(plain, value))
        return plain_scalar(value) if getattr(value, "ndim", None) == 0 else value

    return {name: plain(value) for name, value in metrics.items()}
