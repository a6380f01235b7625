"""Read safetensors: a file, several with an index, or a Hugging Face directory with either.

Parts of a tensor are read in place, so that a shard costs only its own bytes. The tree is a flat
dict whose keys are the tensors' names, as the library's own functions return it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from typing_extensions import override

from orbit_ckpt._src.errors import CheckpointNotFoundError, FormatError
from orbit_ckpt._src.formats.base import DistributedWriter, Format, LinkedFiles, WritableFormat
from orbit_ckpt._src.formats.eformer.records import SUMS, checksums_of_texts
from orbit_ckpt._src.formats.safetensors.header import (
    INDEX,
    INDEX_SUFFIX,
    MAX_HEADER_BYTES,
    SINGLE,
    SUFFIX,
    Header,
    Tensor,
    looks_like_header,
    read_header,
)
from orbit_ckpt._src.formats.stored_tree import StoredTree, TreeParts
from orbit_ckpt._src.metadata.codec import decode_file
from orbit_ckpt._src.metadata.schema import UNKNOWN_TYPE, LeafRecord, TreeDocument
from orbit_ckpt._src.storage.array_checksums import ArrayChecksum
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.foreign import ForeignStore, RawArray
from orbit_ckpt._src.storage.inner_path import is_inner_name
from orbit_ckpt._src.storage.store_path import (
    file_names,
    file_size,
    map_paths,
    read_extent,
)
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.keypath import DictKey

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.writing import WriteRequest

_SNIFFED_BYTES = 16


class SafetensorsFormat(Format, LinkedFiles, WritableFormat, DistributedWriter):
    """Reads and writes safetensors; see `Format`."""

    name = "safetensors"
    extra = None
    writes_as = "safetensors"
    uses_executor = True
    allows_linked_files = True

    @override
    def sniff(self, path: Path) -> str | None:
        if path.is_dir():
            return None if _candidates(path) else f"no *{SUFFIX} or *{INDEX_SUFFIX} in it"
        if path.name.endswith((SUFFIX, INDEX_SUFFIX)):
            return None
        if looks_like_header(read_extent(str(path), 0, _SNIFFED_BYTES), file_size(path)):
            return None
        return "it does not begin with the length of a header and the header"

    @override
    def open(self, path: Path) -> StoredTree:
        main = _main_file(path) if path.is_dir() else path
        is_index = main.name.endswith(INDEX_SUFFIX)
        headers, metadata = _read_index(main) if is_index else ({main: read_header(main)}, {})
        tensors: dict[str, Tensor] = {}
        sums: dict[str, ArrayChecksum] = {}
        for file, header in headers.items():
            tensors |= header.tensors
            sums |= _sums(file, header)
            metadata = {**header.metadata, **metadata}
        names = sorted(tensors)
        records = [LeafRecord.at((DictKey(name),), UNKNOWN_TYPE) for name in names]
        document = TreeDocument(records, custom_metadata=metadata or None)

        def open_parts() -> TreeParts:
            arrays = {
                record.name: RawArray(*t.as_stored, t.extent)
                for record, t in zip(records, map(tensors.__getitem__, names), strict=True)
            }
            by_name = {r.name: sums[n] for r, n in zip(records, names, strict=True) if n in sums}
            return TreeParts(ForeignStore(arrays, list(headers)), sums=by_name)

        return StoredTree(path, document, open_parts, fingerprint_file=main)

    @override
    def write(self, request: WriteRequest) -> None:
        from orbit_ckpt._src.formats.safetensors.write import write  # noqa: PLC0415 - imports JAX

        write(request)


FORMAT = SafetensorsFormat()


class _Index(Struct):
    weight_map: dict[str, str]
    metadata: dict[str, Any] | None = None


def _sums(file: Path, header: Header) -> dict[str, ArrayChecksum]:
    """Return the checksums that eFormer adds, by the tensors' names."""
    if SUMS not in header.metadata:
        return {}
    arrays = {name: tensor.as_stored for name, tensor in header.tensors.items()}
    found = checksums_of_texts(header.metadata, arrays)
    return {name: ArrayChecksum(value, str(file), str(file)) for name, value in found.items()}


def _candidates(directory: Path) -> Sequence[str]:
    """Return the files of a directory that may be the model, Hugging Face's usual names first."""
    names = file_names(directory)
    usual = [name for name in (INDEX, SINGLE) if name in names]
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    return usual[:1] or indexes or [name for name in names if name.endswith(SUFFIX)]


def _main_file(directory: Path) -> Path:
    names = _candidates(directory)
    if len(names) != 1:
        raise CheckpointNotFoundError(
            f"{directory} has {len(names)} models ({shorten_list(names, 8)}) and no {INDEX} that "
            f"says how they go together; give one of them, for example {directory / names[0]}."
        )
    return directory / names[0]


def _read_index(index: Path) -> tuple[dict[Path, Header], dict[str, object]]:
    """Return the headers of an index's files, and the index's metadata.

    Raises:
        FormatError: The index contradicts the files, or names a file outside its directory.
    """
    fields = decode_file(index, _Index, max_bytes=MAX_HEADER_BYTES)
    places = fields.weight_map
    expected: dict[str, set[str]] = {}
    for tensor, name in places.items():
        expected.setdefault(name, set()).add(tensor)
    for name in expected:
        if "\\" in name or not is_inner_name(name):
            what = "is not the name of a file next to the index"
            raise FormatError(f"{index}: {name[:200]!r} {what}")
    directory_of(index.parent).check_links(expected, allow_linked_files=True)
    files = [index.parent / name for name in sorted(expected)]
    are_there = map_paths(lambda file: file.is_file(), files, root=index)
    for file, is_there in zip(files, are_there, strict=True):
        if not is_there:
            raise FormatError(
                f"{index}: {file.name} is missing. Was the checkpoint copied completely?"
            )
    headers = dict(zip(files, map_paths(read_header, files, root=index), strict=True))
    for name, tensors in expected.items():
        _compare(index, name, tensors, headers[index.parent / name])
    return headers, fields.metadata or {}


def _compare(index: Path, file: str, expected: set[str], header: Header) -> None:
    lacking = sorted(expected - set(header.tensors)) or sorted(set(header.tensors) - expected)
    if lacking:
        raise FormatError(
            f"{index}: {file} and the index do not have the same tensors: {lacking[0]!r} is in one "
            f"of them only, like {len(lacking) - 1} others. Copy both from the same checkpoint."
        )
