"""Type handlers and their registry, by Orbax's names."""

from typing import TYPE_CHECKING

from orbit_ckpt.handlers.array import ArrayHandler
from orbit_ckpt.handlers.base import (
    ArrayRestoreArgs,
    ParamInfo,
    RestoreArgs,
    SaveArgs,
    TypeHandler,
)
from orbit_ckpt.handlers.numpy import NumpyHandler
from orbit_ckpt.handlers.registry import (
    GLOBAL_TYPE_HANDLER_REGISTRY,
    TypeHandlerRegistry,
    create_type_handler_registry,
    get_type_handler,
    has_type_handler,
    register_type_handler,
    supported_types,
)
from orbit_ckpt.handlers.scalar import ScalarHandler
from orbit_ckpt.handlers.string import StringHandler
from orbit_ckpt.later import import_later

if TYPE_CHECKING:
    from orbit_ckpt.handlers.single_replica import (
        SingleReplicaArrayHandler,
        SingleReplicaArrayRestoreArgs,
    )

__all__ = [
    "GLOBAL_TYPE_HANDLER_REGISTRY",
    "ArrayHandler",
    "ArrayRestoreArgs",
    "NumpyHandler",
    "ParamInfo",
    "RestoreArgs",
    "SaveArgs",
    "ScalarHandler",
    "SingleReplicaArrayHandler",
    "SingleReplicaArrayRestoreArgs",
    "StringHandler",
    "TypeHandler",
    "TypeHandlerRegistry",
    "create_type_handler_registry",
    "get_type_handler",
    "has_type_handler",
    "register_type_handler",
    "supported_types",
]

_SINGLE_REPLICA = "orbit_ckpt.handlers.single_replica"
__getattr__ = import_later(
    globals(),
    {
        "SingleReplicaArrayHandler": f"{_SINGLE_REPLICA}:SingleReplicaArrayHandler",
        "SingleReplicaArrayRestoreArgs": f"{_SINGLE_REPLICA}:SingleReplicaArrayRestoreArgs",
    },
)


def __dir__() -> list[str]:
    return __all__
