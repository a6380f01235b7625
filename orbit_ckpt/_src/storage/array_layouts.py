"""Find out how the arrays of a store are stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.storage.document_read import read_document
from orbit_ckpt._src.storage.kvstore import ValueStore
from orbit_ckpt._src.storage.layout import Value, join_key
from orbit_ckpt._src.storage.store_path import map_requests
from orbit_ckpt._src.storage.value_find import ValueFinder
from orbit_ckpt._src.storage.zarr import ZarrArray, document_name, parse_array
from orbit_ckpt._src.tree.keypath import KeyPath, format_path


class ArrayLayouts:
    """Reads the metadata documents of arrays; each distinct one is parsed once."""

    def __init__(self, store: ValueStore, *, zarr_format: int) -> None:
        """Make it.

        Args:
            store: The store of the values.
            zarr_format: Format of the documents, 2 or 3.
        """
        self._store = store
        self._values = ValueFinder(store)
        self._zarr_format = zarr_format
        self._document_name = document_name(zarr_format)
        self._by_document: dict[bytes, ZarrArray] = {}
        self._by_name: dict[str, ZarrArray] = {}

    def find(self, leaves: Iterable[tuple[KeyPath, str]]) -> list[ZarrArray]:
        """Return the layouts of arrays.

        Args:
            leaves: The path of each leaf, and its storage name.

        Raises:
            CorruptionError: A metadata document is missing.
            FormatError: A metadata document is not understood.
        """
        if self._store.has_object_per_value:  # several threads ask at once
            return self._ask(list(leaves))
        leaves = list(leaves)
        by_name, known = self._by_name, self._by_document  # names recur where a target is checked
        new = [(path, name) for path, name in leaves if name not in by_name]
        if new:
            keys = [join_key(name, self._document_name) for _, name in new]
            values = self._values.find_all([path for path, _ in new], keys)
            for (path, name), value in zip(new, values, strict=True):
                layout = known.get(value) if type(value) is bytes else None
                by_name[name] = layout or self._parse(path, name, value)
        return [by_name[name] for _, name in leaves]

    def names(self) -> list[str]:
        """Return the storage names of all arrays in the store, including those of no leaf."""
        keys = self._store.keys_below("")
        document = self._document_name
        named = [key.removesuffix(f"/{document}") for key in keys if key.endswith(f"/{document}")]
        return ["", *named] if document in keys else named

    def _ask(self, leaves: Sequence[tuple[KeyPath, str]]) -> list[ZarrArray]:
        def ask(leaf: tuple[KeyPath, str]) -> ZarrArray:
            path, name = leaf
            return self._parse(path, name, self._values.find(path, join_key(name, document_name)))

        document_name = self._document_name
        return map_requests(ask, leaves)

    def _parse(self, path: KeyPath, name: str, value: Value | None) -> ZarrArray:
        key = join_key(name, self._document_name)
        if value is None:
            where = format_path(path)
            raise CorruptionError(
                f"{where}: the array's metadata document {key!r} is missing. "
                f"{self._values.other_names(name)}",
                path=where,
                chunk=key,
                what="the array's metadata document is missing",
            )
        document = value if isinstance(value, bytes) else read_document(path, key, value)
        known = self._by_document.get(document)
        if known is None:
            where = f"{format_path(path)} ({key})"
            known = parse_array(document, zarr_format=self._zarr_format, where=where)
            self._by_document[document] = known
        return known
