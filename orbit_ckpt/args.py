"""Arguments of item handlers, by Orbax's names."""

from typing import TYPE_CHECKING

from orbit_ckpt.items.base import CheckpointArgs, register_with_handler
from orbit_ckpt.items.composite import Composite
from orbit_ckpt.items.json import JsonRestoreArgs as JsonRestore
from orbit_ckpt.items.json import JsonSaveArgs as JsonSave
from orbit_ckpt.items.pytree import PyTreeRestoreArgs as PyTreeRestore
from orbit_ckpt.items.pytree import PyTreeSaveArgs as PyTreeSave
from orbit_ckpt.items.standard import StandardRestoreArgs as StandardRestore
from orbit_ckpt.items.standard import StandardSaveArgs as StandardSave
from orbit_ckpt.later import import_later

if TYPE_CHECKING:
    from orbit_ckpt.items.array import ArrayRestoreArgs as ArrayRestore
    from orbit_ckpt.items.array import ArraySaveArgs as ArraySave
    from orbit_ckpt.items.proto import ProtoRestoreArgs as ProtoRestore
    from orbit_ckpt.items.proto import ProtoSaveArgs as ProtoSave
    from orbit_ckpt.items.random_key import JaxRandomKeyRestoreArgs as JaxRandomKeyRestore
    from orbit_ckpt.items.random_key import JaxRandomKeySaveArgs as JaxRandomKeySave
    from orbit_ckpt.items.random_key import NumpyRandomKeyRestoreArgs as NumpyRandomKeyRestore
    from orbit_ckpt.items.random_key import NumpyRandomKeySaveArgs as NumpyRandomKeySave
    from orbit_ckpt.items.stateful import StatefulRestoreArgs as StatefulRestore
    from orbit_ckpt.items.stateful import StatefulSaveArgs as StatefulSave

__all__ = [
    "ArrayRestore",
    "ArraySave",
    "CheckpointArgs",
    "Composite",
    "JaxRandomKeyRestore",
    "JaxRandomKeySave",
    "JsonRestore",
    "JsonSave",
    "NumpyRandomKeyRestore",
    "NumpyRandomKeySave",
    "ProtoRestore",
    "ProtoSave",
    "PyTreeRestore",
    "PyTreeSave",
    "StandardRestore",
    "StandardSave",
    "StatefulRestore",
    "StatefulSave",
    "register_with_handler",
]

# Most programs use trees only.
__getattr__ = import_later(
    globals(),
    {
        "ArrayRestore": "orbit_ckpt.items.array:ArrayRestoreArgs",
        "ArraySave": "orbit_ckpt.items.array:ArraySaveArgs",
        "ProtoRestore": "orbit_ckpt.items.proto:ProtoRestoreArgs",
        "ProtoSave": "orbit_ckpt.items.proto:ProtoSaveArgs",
        "JaxRandomKeyRestore": "orbit_ckpt.items.random_key:JaxRandomKeyRestoreArgs",
        "JaxRandomKeySave": "orbit_ckpt.items.random_key:JaxRandomKeySaveArgs",
        "NumpyRandomKeyRestore": "orbit_ckpt.items.random_key:NumpyRandomKeyRestoreArgs",
        "NumpyRandomKeySave": "orbit_ckpt.items.random_key:NumpyRandomKeySaveArgs",
        "StatefulRestore": "orbit_ckpt.items.stateful:StatefulRestoreArgs",
        "StatefulSave": "orbit_ckpt.items.stateful:StatefulSaveArgs",
    },
)


def __dir__() -> list[str]:
    return __all__
