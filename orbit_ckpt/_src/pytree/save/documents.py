"""The documents of a tree that is saved; those of a kept plan are encoded once."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.metadata.files import encode_shardings
from orbit_ckpt._src.metadata.outline import encode_rich_types
from orbit_ckpt._src.metadata.schema import (
    LeafDetail,
    LeafRecord,
    TreeDetails,
    TreeDocument,
    encode_values,
)
from orbit_ckpt._src.metadata.user_json import encode_user_json
from orbit_ckpt._src.pytree.save.plan import SavePlan
from orbit_ckpt._src.pytree.save.whole import LeafColumns


class TreeDocuments(Struct, frozen=True):
    """The documents of a tree, which the primary process writes.

    Attributes:
        tree: `_METADATA`.
        shardings: `_sharding`, None without one.
        details: What these lose.
    """

    tree: bytes
    shardings: bytes | None
    details: TreeDetails


def encode_documents(
    plan: SavePlan,
    columns: LeafColumns,
    details: Mapping[str, LeafDetail],
    others: Mapping[str, ShardingMetadata],
    *,
    use_ocdbt: bool,
    use_zarr3: bool,
    custom_metadata: object,
) -> TreeDocuments:
    """Return the documents of a tree.

    Args:
        plan: The tree.
        columns: What is recorded of its leaves.
        details: What handlers have recorded of leaves, by storage name.
        others: Shardings of arrays that are parts of leaves, by storage name.
        use_ocdbt: Whether arrays are in one database.
        use_zarr3: Whether arrays are zarr3.
        custom_metadata: Any JSON value of the user.
    """
    custom = encode_user_json(custom_metadata)
    given = (columns.write_shapes, use_ocdbt, use_zarr3, custom)
    names = [*plan.names, *others]
    shardings = [*columns.shardings, *others.values()]

    def encode_tree() -> bytes:
        records = _records(plan, columns)
        rich_types = None
        if plan.outline is not None:
            rich_types = encode_rich_types(plan.outline, encode_values(records))
        return TreeDocument(
            leaves=records,
            use_ocdbt=use_ocdbt,
            use_zarr3=use_zarr3,
            custom_metadata=custom_metadata,
            rich_types=rich_types,
        ).encode()

    return TreeDocuments(
        plan.derive("tree", given, encode_tree),
        plan.derive("shardings", (names, shardings), lambda: encode_shardings(names, shardings)),
        TreeDetails(plan.key_kinds, {**plan.details, **details}),
    )


def _records(plan: SavePlan, columns: LeafColumns) -> list[LeafRecord]:
    flat, empty = plan.flat, plan.empty
    is_empty = [position in empty for position in range(len(plan.names))]
    columns_of_records = (
        flat.paths,
        flat.names,
        plan.names,
        plan.typestrs,
        is_empty,
        columns.write_shapes,
    )
    return list(map(LeafRecord, *columns_of_records))
