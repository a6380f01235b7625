"""Read the metadata of a checkpoint without reading its arrays.

The module is callable: `orbit_ckpt.metadata(path)` returns the metadata of a checkpoint as
instances of the classes in this module.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names
from orbit_ckpt._src.metadata_module import MetadataModule

if TYPE_CHECKING:
    from orbit_ckpt._src.arrays.recorded_sharding import (
        NamedShardingMetadata,
        ShardingMetadata,
        SingleDeviceShardingMetadata,
    )
    from orbit_ckpt._src.checkpointer.inspect import get_step_metadata
    from orbit_ckpt._src.metadata.store import MetadataStore, metadata_store
    from orbit_ckpt._src.metadata.values import (
        ArrayMetadata,
        Metadata,
        RootMetadata,
        ScalarMetadata,
        StepMetadata,
        StorageMetadata,
        StringMetadata,
        TreeMetadata,
    )
    from orbit_ckpt.metadata import tree, value

__all__ = [
    "ArrayMetadata",
    "Metadata",
    "MetadataStore",
    "NamedShardingMetadata",
    "RootMetadata",
    "ScalarMetadata",
    "ShardingMetadata",
    "SingleDeviceShardingMetadata",
    "StepMetadata",
    "StorageMetadata",
    "StringMetadata",
    "TreeMetadata",
    "get_step_metadata",
    "metadata_store",
    "tree",
    "value",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "arrays.recorded_sharding": (
            "NamedShardingMetadata, ShardingMetadata, SingleDeviceShardingMetadata"
        ),
        "checkpointer.inspect": "get_step_metadata",
        "metadata.store": "MetadataStore, metadata_store",
        "metadata.values": (
            "ArrayMetadata, Metadata, RootMetadata, ScalarMetadata, StepMetadata, "
            "StorageMetadata, StringMetadata, TreeMetadata"
        ),
        "": "metadata.tree as tree, metadata.value as value",
    },
)

sys.modules[__name__].__class__ = MetadataModule
