"""Find stored values of leaves; errors name the leaf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orbit_ckpt._src.errors import CorruptionError, UnsafePathError
from orbit_ckpt._src.storage.kvstore import ValueStore
from orbit_ckpt._src.storage.layout import Value
from orbit_ckpt._src.tree.keypath import KeyPath, format_path


class ValueFinder:
    """Finds the values of leaves in one store."""

    def __init__(self, store: ValueStore) -> None:
        self._store = store

    def find(self, path: KeyPath, key: str) -> Value | None:
        """Return the value of a leaf's key or its place, None if the key does not exist.

        Raises:
            CorruptionError: A file that should hold it is missing or not what was written.
        """
        try:
            return self._store.find(key)
        except CorruptionError as error:
            kind = UnsafePathError if isinstance(error, UnsafePathError) else CorruptionError
            raise kind(
                f"{format_path(path)}: {key!r}: {error}",
                path=format_path(path),
                chunk=key,
                file=error.file,
                what=error.what,
            ) from error

    def find_all(self, paths: Iterable[KeyPath], keys: Sequence[str]) -> list[Value | None]:
        """Return what `find` returns for several leaves."""
        try:
            return self._store.find_all(keys)
        except CorruptionError:  # does not name the leaf
            return list(map(self.find, paths, keys))

    def other_names(self, name: str) -> str:
        """Describe the existing files of an array, for messages."""
        found = self._store.keys_below(name)[:5]
        return (
            f"Of this array there is only {', '.join(found)}."
            if found
            else "Nothing of this array is there; was the checkpoint copied completely?"
        )
