"""The built-in handlers, registered, and the registries that thus contain them."""

from __future__ import annotations

from orbit_ckpt._src.v1.item_handlers import (
    METRICS,
    JsonHandler,
    MetricsHandler,
    ProtoHandler,
    StatefulCheckpointableHandler,
)
from orbit_ckpt._src.v1.pytree_handler import PyTreeHandler
from orbit_ckpt._src.v1.registration import (
    STATE,
    CheckpointableHandlerRegistry,
    global_registry,
    handler_for_load,
    handler_for_save,
    local_registry,
    register_handler,
    typestr_of,
)

__all__ = [
    "METRICS",
    "STATE",
    "CheckpointableHandlerRegistry",
    "JsonHandler",
    "MetricsHandler",
    "ProtoHandler",
    "PyTreeHandler",
    "StatefulCheckpointableHandler",
    "global_registry",
    "handler_for_load",
    "handler_for_save",
    "local_registry",
    "register_handler",
    "typestr_of",
]


def _legacy(*modules: tuple[str, str]) -> list[str]:
    roots = ("orbax.checkpoint._src.handlers", "orbax.checkpoint.v0._src.handlers")
    return [f"{root}.{module}.{name}" for module, name in modules for root in roots]


def _register_built_in() -> None:
    registry = global_registry()
    trees = (
        ("pytree_checkpoint_handler", "PyTreeCheckpointHandler"),
        ("standard_checkpoint_handler", "StandardCheckpointHandler"),
    )
    proto = _legacy(("proto_checkpoint_handler", "ProtoCheckpointHandler"))
    json = _legacy(("json_checkpoint_handler", "JsonCheckpointHandler"))
    registry.add(ProtoHandler, secondary_typestrs=proto)
    registry.add(JsonHandler, secondary_typestrs=json)
    registry.add(StatefulCheckpointableHandler)
    registry.add(MetricsHandler, checkpointable_name=METRICS)
    registry.add(PyTreeHandler, secondary_typestrs=_legacy(*trees))
    registry.add(PyTreeHandler, checkpointable_name=STATE)


_register_built_in()
