"""Commands that list the items and leaves of a checkpoint, and compare two."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, structs

from orbit_ckpt._src.checkpointer.inspect import metadata
from orbit_ckpt._src.cli.output import echo, format_time, print_json, print_unfinished, stored_bytes
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.formats.locate import Located
from orbit_ckpt._src.formats.orbax.layout import holds_tree
from orbit_ckpt._src.guards import is_mapping
from orbit_ckpt._src.metadata.files import read_step
from orbit_ckpt._src.metadata.values import ArrayMetadata, ScalarMetadata, StringMetadata
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.layout import ARRAY_METADATAS, OCDBT_DATA, is_process_directory
from orbit_ckpt._src.storage.path import PathLike
from orbit_ckpt._src.text import human_bytes
from orbit_ckpt._src.transform.patterns import explain_unmatched, join_name, names_matching
from orbit_ckpt._src.tree.build import is_empty_container, leaves_of
from orbit_ckpt._src.tree.keypath import NamePath, name_path

_NOT_ITEMS = frozenset({ARRAY_METADATAS, OCDBT_DATA})


class Leaf(Struct, frozen=True):
    """Metadata of a leaf.

    Attributes:
        keys: Its keys.
        kind: `array`, `scalar`, `string`, `empty`, or a third-party metadata class.
        dtype: Its dtype, None if it has none.
        shape: Its shape, None if it has none.
        nbytes: Size of its values in memory.
        sharding: Its sharding when saved, as text.
        chunk_shape: Shape of its stored chunks.
        compression: Compression of its chunks.
    """

    keys: NamePath
    kind: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    nbytes: int = 0
    sharding: str | None = None
    chunk_shape: tuple[int, ...] | None = None
    compression: str | None = None

    @property
    def name(self) -> str:
        """Its keys, joined by slashes; ambiguous if keys contain slashes."""
        return join_name(self.keys)

    @property
    def fields(self) -> dict[str, object]:
        """Its JSON form."""
        found = structs.asdict(self)
        del found["keys"]
        return {"name": self.name, **found}

    @property
    def description(self) -> str:
        """Dtype and shape, or its kind if it is not an array."""
        if self.shape is None or self.dtype is None:
            return self.kind
        return self.dtype if self.kind == "scalar" else f"{self.dtype}{list(self.shape)}"


def list_leaves(
    path: PathLike, patterns: Sequence[str] = (), reader: Format | None = None
) -> list[Leaf]:
    """Return the leaves of a checkpoint in order without reading arrays.

    Args:
        path: The checkpoint.
        patterns: Patterns of which a leaf must match one, if any are given.
        reader: The format to read, None to detect it.

    Raises:
        ValueError: No leaf matches.
    """
    found = leaves_of(metadata(path, reader=reader).tree)
    leaves = [(name_path(keys), value) for keys, value in found]
    chosen = set(choose([join_name(names) for names, _ in leaves], patterns))
    return [_describe(names, value) for names, value in leaves if join_name(names) in chosen]


def choose(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of several patterns; all names without patterns.

    Raises:
        ValueError: No name matches.
    """
    if not patterns:
        return list(names)
    found = {name for pattern in patterns for name in names_matching(pattern, names)}
    if not found:
        raise ValueError(
            f"No leaf matches {' or '.join(map(repr, patterns))}. "
            f"{explain_unmatched(patterns[0], names)}"
        )
    return [name for name in names if name in found]


def choose_leaves(leaves: Sequence[Leaf], pattern: str) -> list[Leaf]:
    """Return the leaves of a name, or those that a pattern matches.

    Raises:
        ValueError: There is none, or several leaves have the name.
    """
    same = [found for found in leaves if found.name == pattern]
    if not same:
        names = set(choose([found.name for found in leaves], [pattern]))  # raises if none matches
        return [found for found in leaves if found.name in names]
    if len(same) > 1:
        keys = " and ".join(str(list(found.keys)) for found in same)
        raise ValueError(f"{pattern!r} is the name of {len(same)} leaves, with the keys {keys}.")
    return same


def _describe(keys: NamePath, value: object) -> Leaf:
    if is_empty_container(value):
        return Leaf(keys, "None" if value is None else f"empty {type(value).__name__}")
    if isinstance(value, StringMetadata):
        return Leaf(keys, "string")
    if not isinstance(value, ArrayMetadata):
        return Leaf(keys, type(value).__name__.removesuffix("Metadata").lower() or "unknown")
    storage = value.storage
    return Leaf(
        keys,
        "scalar" if isinstance(value, ScalarMetadata) else "array",
        str(value.dtype),
        tuple(value.shape),
        value.nbytes,
        None if value.sharding is None else str(value.sharding),
        storage.chunk_shape if storage else None,
        storage.compression if storage else None,
    )


def list_foreign(root: Path, name: str, unfinished: Sequence[str], as_json: bool) -> None:
    """List the contents of another program's checkpoint."""
    nbytes, leaves = stored_bytes(root), len(list_leaves(str(root)))
    custom = metadata(root).custom_metadata
    if as_json:
        items = [{"item": "", "bytes": nbytes, "leaves": leaves, "handler": name}]
        print_json(
            "ls",
            kind="checkpoint",
            path=root,
            time=None,
            custom_metadata=custom,
            items=items,
            unfinished=unfinished,
        )
        return
    row = ["(the checkpoint)", human_bytes(nbytes), str(leaves), name]
    print_table(["item", "size", "leaves", "format"], [row], right={"size", "leaves"})
    for key, value in custom.items() if is_mapping(custom) else ():
        echo(f"{key}: {value}")
    print_unfinished(unfinished)


def list_checkpoint(located: Located, unfinished: Sequence[str], as_json: bool) -> None:
    """List the items of a checkpoint."""
    root = located.path
    document = read_step(CheckedDirectory(root))
    handlers = document.item_handlers
    items: list[dict[str, object]] = []
    for name in located.items:
        if name in _NOT_ITEMS or is_process_directory(name):
            continue
        directory = root / name
        recorded = handlers if isinstance(handlers, str) else (handlers or {}).get(name)
        is_tree = holds_tree(directory)
        items.append(
            {
                "item": name,
                "bytes": stored_bytes(directory),
                "leaves": len(list_leaves(str(directory))) if is_tree else None,
                "handler": recorded,
            }
        )
    saved = document.commit_timestamp_nsecs
    time = None if saved is None else datetime.fromtimestamp(saved / 1e9, tz=UTC)
    if as_json:
        print_json(
            "ls",
            kind="checkpoint",
            path=root,
            time=None if time is None else time.isoformat(timespec="seconds"),
            custom_metadata=document.custom_metadata,
            items=items,
            unfinished=unfinished,
        )
        return
    rows = [
        [
            str(item["item"] or "(the checkpoint)"),
            human_bytes(stored_bytes(root / str(item["item"]))),
            "" if item["leaves"] is None else str(item["leaves"]),
            str(item["handler"] or "").rpartition(".")[2],
        ]
        for item in items
    ]
    print_table(["item", "size", "leaves", "handler"], rows, right={"size", "leaves"})
    if time is not None:
        echo(f"saved {format_time(time)}")
    for key, value in document.custom_metadata.items():
        echo(f"{key}: {value}")
    print_unfinished(unfinished)
