"""Read eFormer's checkpoints: zarr2 arrays with an index, in one tree or in one tree per prefix.

The root of a checkpoint with prefixes is read as a dict of its trees; the directory of one tree, or
its `*_structure.json`, as that tree. The structure is rebuilt from the names of the leaves, because
the structure file stores it as a pickle, which is never run.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field, structs
from typing_extensions import override

from orbit_ckpt._src.errors import CheckpointNotFoundError, FormatError
from orbit_ckpt._src.formats.base import ForeignStep, Format, StepRecognizer
from orbit_ckpt._src.formats.eformer.records import checksums_of_trees, decode_literal
from orbit_ckpt._src.formats.run_metadata import (
    find_mixed,
    first_enclosing,
    marked_step,
    read_run_metadata,
    several_message,
)
from orbit_ckpt._src.formats.stored_tree import StoredTree, TreeParts
from orbit_ckpt._src.formats.zarr_find import has_arrays
from orbit_ckpt._src.formats.zarr_tree import ArrayEntry, in_tree_order, key_paths, listed_arrays
from orbit_ckpt._src.metadata.codec import decode_file
from orbit_ckpt._src.metadata.schema import UNKNOWN_TYPE, LeafRecord, TreeDocument
from orbit_ckpt._src.storage.array_checksums import ArrayChecksum
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.foreign import ForeignStore
from orbit_ckpt._src.storage.inner_path import InnerFiles, is_inner_name
from orbit_ckpt._src.storage.layout import RUN_METADATA, ZARR2_DOCUMENT
from orbit_ckpt._src.tree.keypath import KeyPath, NamePath, format_path, name_path

INDEX = "tensorstore_index.json"
DETAILS = "checkpoint_metadata.json"
STRUCTURE_SUFFIX = "_structure.json"
_MAX_BYTES = 100_000_000
"""Maximum size of a document."""

_FORMAT, _STRUCTURE_FORMAT = "tensorstore", "pytree-structure"


class EFormerFormat(Format, StepRecognizer):
    """Reads checkpoints of eFormer; see `Format`."""

    name = "eFormer"
    extra = None

    @override
    def sniff(self, path: Path) -> str | None:
        # accept a run of several checkpoints, so that `open` can explain
        root = _root_of(path)
        if root is None:
            is_local = directory_of(path).has_local_files  # else it takes a request per directory
            is_run = is_local and several_message(path)
            return None if is_run else f"no {INDEX} in it"
        if root != path and path.is_dir() and not has_arrays(path):
            return f"no {ZARR2_DOCUMENT} below it"
        return None

    @override
    def open(self, path: Path) -> StoredTree:
        root = _root_of(path)
        if root is None:
            raise CheckpointNotFoundError(f"{path} is not a checkpoint{several_message(path)}.")
        checkpoint = _Checkpoint(root)
        prefix = None if path == root else checkpoint.prefix_at(path)
        trees = [checkpoint.tree(p) for p in (checkpoint.prefixes if path == root else [prefix])]
        leaves = [leaf for tree in trees for leaf in tree.leaves]
        try:
            paths = _paths_of(trees, 0 if prefix is None else 1)
        except ValueError as error:
            raise FormatError(f"{root / INDEX}: {error}. The file is damaged.") from error
        records = [_record(leaf, at) for leaf, at in zip(leaves, paths, strict=True)]
        _check_names(records, root)
        pairs = list(zip(records, leaves, strict=True))
        entries = {record.name: leaf.entry for record, leaf in pairs if leaf.entry is not None}
        arrays = listed_arrays(root, entries, root / INDEX)
        sums = checkpoint.sums(entries)
        files = [root / INDEX, *(tree.file for tree in trees if tree.file is not None)]
        document = TreeDocument(
            [records[i] for i in in_tree_order(paths)],
            custom_metadata=checkpoint.custom_metadata(trees, prefix),
        )
        return StoredTree(
            path,
            document,
            lambda: TreeParts(ForeignStore(arrays, files), sums=sums),
            inline={
                r.name: leaf.value for r, leaf in pairs if leaf.entry is None and not r.is_empty
            },
            fingerprint_file=root / INDEX,
            unbound=checkpoint.unbound(trees, is_summed=bool(sums)),
            mixed=checkpoint.mixed(trees),
        )

    @override
    def step_at(self, path: Path) -> ForeignStep | None:
        return marked_step(path) if (path / INDEX).is_file() else None


FORMAT = EFormerFormat()


class _Index(Struct):
    format: str = _FORMAT
    prefixes: dict[str, list[ArrayEntry]] = field(default_factory=dict[str, list[ArrayEntry]])
    arrays: list[ArrayEntry] | None = None


class _Details(Struct):
    custom_metadata: dict[str, Any] | None = None
    checksum: object = None
    array_metadata: object = None


class _Structure(Struct):
    """The fields of a structure file that are read, without its pickled treedef."""

    format: str
    prefix: str
    leaf_keys_full: list[str]
    arr_mask: list[bool]
    array_relpaths: list[str]
    nonarray_payload: dict[str, str]
    extras: dict[str, Any] | None = None


class _Leaf(Struct):
    """A leaf: its names, including the prefix, and its index entry or its value."""

    names: NamePath
    entry: ArrayEntry | None = None
    value: object = None


class _Tree(Struct):
    """The leaves of one tree.

    Attributes:
        leaves: The leaves.
        file: Its structure file, None without one.
        extras: The metadata saved with it.
    """

    leaves: Sequence[_Leaf]
    file: Path | None = None
    extras: Mapping[str, object] = field(default_factory=dict[str, object])


class _Checkpoint:
    """The documents of one checkpoint.

    Raises:
        FormatError: The index is damaged, or is not an index.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._where = root / INDEX
        files = InnerFiles(root)
        self._index = decode_file(files.file(INDEX), _Index, max_bytes=_MAX_BYTES)
        if self._index.format != _FORMAT:
            raise self._bad(f"unsupported index format {self._index.format[:80]!r}")
        for prefix in self._index.prefixes:
            if not is_inner_name(prefix) or {"/", "\\"} & set(prefix):
                raise self._bad(f"prefix {prefix[:80]!r} is not a name")
        structures = sorted(p.name for p in root.iterdir() if p.name.endswith(STRUCTURE_SUFFIX))
        self._details = _read_details(files.file(DETAILS))
        self._run = read_run_metadata(root)
        self._structures = {n.removesuffix(STRUCTURE_SUFFIX): files.file(n) for n in structures}
        for prefix, file in self._structures.items():
            if prefix not in self._index.prefixes:
                raise self._bad(f"it does not have {prefix!r}, of which there is {file.name}")

    @property
    def prefixes(self) -> list[str | None]:
        """The prefixes of its trees; None stands for the tree without a prefix."""
        return [*([] if self._index.arrays is None else [None]), *self._index.prefixes]

    def prefix_at(self, path: Path) -> str:
        """Return the prefix of the tree whose directory or structure file is at a path.

        Raises:
            CheckpointNotFoundError: The path belongs to no tree.
        """
        for prefix in self._index.prefixes:
            if path in (self._root.joinpath(*prefix.split(".")), self._structures.get(prefix)):
                return prefix
        raise CheckpointNotFoundError(
            f"{path} is not a whole tree of the checkpoint {self._root}, whose trees are: "
            f"{', '.join(self._index.prefixes) or 'one without a name'}. Give one of them, "
            "or the checkpoint, and choose leaves of it with only=."
        )

    def tree(self, prefix: str | None) -> _Tree:
        """Return the leaves of one tree.

        Raises:
            FormatError: Index and structure contradict each other, or one is damaged.
        """
        entries: dict[NamePath, ArrayEntry] = {}
        for entry in self._listed(prefix):
            try:
                names = _split_prefix(entry.parts(), prefix)
                key_paths([names], infer_lists=False)
            except ValueError as error:
                raise self._bad(str(error)) from error
            if names in entries:
                raise self._bad(
                    f"{entry.path} is listed twice: two leaves were saved under one name, and the "
                    "second replaced the first. If you know which one it is, remove the other entry"
                )
            entries[names] = entry
        if prefix not in self._structures:
            return _Tree([_Leaf(names, entry) for names, entry in entries.items()])
        return _read_structure(self._structures[prefix or ""], prefix or "", entries)

    def custom_metadata(self, trees: Sequence[_Tree], prefix: str | None) -> dict[str, object]:
        """Return the custom metadata of the checkpoint, or of one of its trees.

        A tree has the metadata given when it was saved, and the step, the time and whether the
        checkpoint is temporary. A checkpoint has the metadata of its trees under `extras`.
        """
        found: dict[str, object] = {}
        if prefix is None:
            found |= self._details.custom_metadata or {}
        if prefix is not None:
            found |= trees[0].extras
        elif any(tree.extras for tree in trees):
            pairs = zip(self.prefixes, trees, strict=True)
            found["extras"] = {p: dict(t.extras) for p, t in pairs if p is not None and t.extras}
        if self._run is not None:
            found |= structs.asdict(self._run)
        return found

    def mixed(self, trees: Sequence[_Tree]) -> str | None:
        """Explain which documents are of different steps, None if all agree; see `find_mixed`."""
        recorded = {tree.file.name: tree.extras.get("step") for tree in trees if tree.file}
        if self._details.custom_metadata:
            recorded[DETAILS] = self._details.custom_metadata.get("step")
        return find_mixed(self._root, self._run, recorded)

    def unbound(self, trees: Sequence[_Tree], *, is_summed: bool) -> list[Path]:
        """Return the documents that no checksum binds to the arrays.

        Args:
            trees: The trees.
            is_summed: Whether the details hold checksums of arrays, which bind the two.
        """
        names = [RUN_METADATA] if self._run is not None else []
        names += [DETAILS] if self._details.custom_metadata and not is_summed else []
        return [*(self._root / name for name in names), *(t.file for t in trees if t.file)]

    def sums(self, entries: Mapping[str, ArrayEntry]) -> dict[str, ArrayChecksum]:
        """Return the checksums of some arrays; both mappings are by storage name."""
        trees = {p: self._listed(p) for p in self.prefixes}
        by_path = checksums_of_trees(self._details.checksum, self._details.array_metadata, trees)
        where = str(self._root / DETAILS)
        return {
            name: ArrayChecksum(by_path[entry.path], str(self._root / entry.path), where)
            for name, entry in entries.items()
            if entry.path in by_path
        }

    def _listed(self, prefix: str | None) -> Sequence[ArrayEntry]:
        return self._index.arrays or [] if prefix is None else self._index.prefixes[prefix]

    def _bad(self, what: str) -> FormatError:
        advice = "The file is damaged, or eFormer did not write it."
        return FormatError(f"{self._where}: {what}. {advice}")


def _read_details(file: Path) -> _Details:
    return decode_file(file, _Details, max_bytes=_MAX_BYTES) if file.is_file() else _Details()


def _root_of(path: Path) -> Path | None:
    """Return the root of the checkpoint at a path, or of the one that contains the tree there."""
    if path.is_dir():
        # a prefix with dots is several directories
        return first_enclosing(path, lambda at: (at / INDEX).is_file())
    is_structure = path.name.endswith(STRUCTURE_SUFFIX)
    return path.parent if is_structure and (path.parent / INDEX).is_file() else None


def _record(leaf: _Leaf, path: KeyPath) -> LeafRecord:
    is_none = leaf.entry is None and leaf.value is None
    return LeafRecord.at(path, "None" if is_none else UNKNOWN_TYPE, is_empty=is_none)


def _split_prefix(parts: NamePath, prefix: str | None) -> NamePath:
    """Return the names of a leaf; the prefix of its tree, if any, is the first."""
    if prefix is None:
        return parts
    first = tuple(prefix.split("."))
    rest = parts[len(first) :] if parts[: len(first)] == first else parts
    return (prefix, *rest)


def _read_structure(file: Path, prefix: str, entries: Mapping[NamePath, ArrayEntry]) -> _Tree:
    """Return the leaves listed in a structure file."""
    found = decode_file(file, _Structure, max_bytes=_MAX_BYTES)
    try:
        leaves = _leaves_of(found, prefix, entries)
    except ValueError as error:
        advice = "The file is damaged, or belongs to another save."
        raise FormatError(f"{file}: {error}. {advice}") from error
    return _Tree(leaves, file, found.extras or {})


def _leaves_of(
    found: _Structure, prefix: str, entries: Mapping[NamePath, ArrayEntry]
) -> Sequence[_Leaf]:
    _check_counts(found, prefix)
    by_path = {entry.path: entry for entry in entries.values()}
    extra = sorted(set(by_path) - set(found.array_relpaths))
    if extra:
        raise ValueError(f"{extra[0]} is in {INDEX} only")
    paths = iter(found.array_relpaths)
    leaves: list[_Leaf] = []
    for i, (key, is_array) in enumerate(zip(found.leaf_keys_full, found.arr_mask, strict=True)):
        names = _split_prefix(tuple(key.split(".")), prefix)
        if is_array:
            path = next(paths)
            if path not in by_path:
                raise ValueError(f"{path[:200]} is not in {INDEX}")
            if path.replace("/", ".") != key:
                raise ValueError(f"{key[:200]} is stored as {path}")
            leaves.append(_Leaf(names, by_path[path]))
            continue
        try:
            payload = base64.b64decode(found.nonarray_payload[str(i)], validate=True)
            leaves.append(_Leaf(names, None, decode_literal(payload)))
        except KeyError:
            raise ValueError(f"the value of {key[:200]} is missing") from None
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"the value of {key[:200]}: {error}") from error
    return leaves


def _check_counts(found: _Structure, prefix: str) -> None:
    if found.format != _STRUCTURE_FORMAT or found.prefix != prefix:
        raise ValueError(f"it is of format {found.format!r} and of prefix {found.prefix!r}")
    if len(found.arr_mask) != len(found.leaf_keys_full):
        raise ValueError(f"{len(found.leaf_keys_full)} leaves, {len(found.arr_mask)} in mask")
    if sum(found.arr_mask) != len(found.array_relpaths):
        raise ValueError(f"{sum(found.arr_mask)} arrays, {len(found.array_relpaths)} paths")


def _paths_of(trees: Sequence[_Tree], skipped: int) -> list[KeyPath]:
    """Return the paths of the leaves of trees, in order.

    A list can be recognized only in a tree with a structure file; without one, eFormer itself
    returns dicts.

    Args:
        trees: The trees.
        skipped: Number of leading names to drop, to leave out the prefix.
    """
    paths: list[KeyPath] = []
    for tree in trees:
        names = [leaf.names[skipped:] for leaf in tree.leaves]
        paths += key_paths(names, infer_lists=tree.file is not None)
    return paths


def _check_names(records: Sequence[LeafRecord], root: Path) -> None:
    """Check that trees with and without a prefix do not have leaves of the same path."""
    names = [name_path(record.path) for record in records]
    try:
        key_paths(names, infer_lists=False)
    except ValueError as error:
        raise FormatError(f"{root / INDEX}: {error}. The file is damaged.") from error
    seen: set[str] = set()
    for record in records:
        if record.name in seen:
            raise FormatError(
                f"{root / INDEX}: two leaves are called {format_path(record.path)}. Load one tree "
                "of the checkpoint at a time."
            )
        seen.add(record.name)
