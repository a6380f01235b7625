"""What one operation sees of a store: a listing, and every document once.

The layers above ask for each marker and document where they need it, as on a disk. In a store each
question is a request, and those that follow one another take the time. While a view is open, the
paths below its root answer from one listing, and the documents of a checkpoint are fetched
together when the first is read.

Invariant: a view is a snapshot no older than the operation. `is_unchanged` asks the store again for
the markers, after all documents have been read; data files need no such check, for their names are
random.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.bucket import Bucket, FoundObject, Parts
from orbit_ckpt._src.storage.layout import (
    COMMIT_MARKER,
    MANIFEST,
    OCDBT_MANIFEST,
    SHARDINGS,
    STEP_METADATA,
    TREE_METADATA,
)
from orbit_ckpt._src.storage.scatter import scatter
from orbit_ckpt._src.storage.store_path import StorePath, current_view, map_requests

_TOGETHER = frozenset({TREE_METADATA, MANIFEST, OCDBT_MANIFEST, SHARDINGS})
"""Documents of a checkpoint that a reader needs together."""

_DOCUMENTS = _TOGETHER | {STEP_METADATA}

_DOCUMENT_BYTES = 1 << 24
"""Size up to which what the operation itself has written is remembered."""

_MOST_DOCUMENTS = 24
"""A directory with more of them is a run."""

_BEFORE_STEPS = "A"
"""Sorts behind all digits: a listing from here on omits steps, of which a run may have many."""


class StoreView:
    """A view of the objects below a path, and of those right beside it.

    Attributes:
        root: The path.
        is_for_reading: Whether it lists what is beside its root, and reads documents together.
    """

    def __init__(self, root: StorePath, *, beside: bool = True) -> None:
        """Open a view, which sends its first requests.

        Args:
            root: The path.
            beside: Whether to list what is right beside it, too, and to read documents together.
        """
        self.root = root
        self.is_for_reading = beside
        self._root = root.prefix
        self._bucket = root.own_bucket()
        self._pool = Workers(4, "orbit_ckpt-view")
        above = root.parent.prefix if root.key else root.prefix
        listings = [self._pool.submit(self._bucket.list_page, self._root)]
        if root.key and beside:
            listings.append(self._pool.submit(self._bucket.list_page, above, "/", _BEFORE_STEPS))
        self._listings = dict(zip((self._root, above), listings, strict=False))
        self._known: dict[str, bytes | None] = {}
        """Contents of documents; None if they do not exist."""

        self._changes: dict[str, bool] = {}
        """Whether objects exist that the operation has written or deleted."""

        self._versions: dict[str, bytes | None] = {}
        self._others: dict[tuple[str, str], Any] = {}
        self._recheck: dict[str, Future[bytes | None]] = {}
        self._is_stale = False
        self._lock = threading.RLock()

    def is_of(self, bucket: Bucket) -> bool:
        """Return whether it is of a bucket."""
        return bucket is self._bucket

    def covers(self, path: StorePath) -> bool:
        """Return whether a path is its root or below it."""
        return path.prefix.startswith(self._root)

    def bucket(self) -> Bucket:
        """Return the bucket as the operation sees it."""
        return _ViewedBucket(self._bucket, self)

    def invalidate(self) -> None:
        """Answer nothing from now on: objects have been written or deleted."""
        self._is_stale = True

    def changed(self, key: str, data: bytes | None) -> None:
        """Note what the operation itself has written, or None of an object that it has deleted."""
        with self._lock:
            self._known.pop(key, None)
            if data is None or len(data) <= _DOCUMENT_BYTES:
                self._known[key] = data
            self._versions.pop(key, None)
            self._changes[key] = data is not None

    def is_unchanged(self, path: StorePath) -> bool:
        """Return whether the commit markers of a path are still those that the view has seen."""
        seen = self._seen_markers(path)
        with self._lock:
            rechecks = [self._recheck.get(key) or self._ask_again(key) for key in seen]
        return [future.result() for future in rechecks] == list(seen.values())

    def _seen_markers(self, path: StorePath) -> dict[str, bytes | None]:
        """Return the versions of the commit markers of a path that exist, or else of all."""
        keys = [marker.key for marker in commit_markers(path)]
        seen = {key: self.version(key) for key in keys}
        return {key: version for key, version in seen.items() if version is not None} or seen

    # what a bucket answers

    def read(self, key: str) -> bytes | None:
        """Return the contents of an object, None if it does not exist."""
        if key in self._known:
            return self._known[key]
        if self.exists(key) is False:
            return None
        if key.rpartition("/")[2] not in _DOCUMENTS:
            self._recheck.clear()
            return self._bucket.read(key)
        with self._lock:  # threads that want other documents find them here
            if key not in self._known:
                self._read_documents(key)
            return self._known[key]

    def _read_documents(self, key: str) -> None:
        """Read a document, and all others that a reader of it needs."""
        near = self._relatives(key) if self.is_for_reading else ()
        keys = [key, *(other for other in near if other != key)]
        self._recheck.clear()
        found = map_requests(self._bucket.read, keys)
        self._known.update(zip(keys, found, strict=True))
        if self.is_for_reading:  # while data files are read
            folders = {other.rpartition("/")[0] for other in keys}
            inner = {f"{folder}/{COMMIT_MARKER}" for folder in folders} & self._versions.keys()
            for marker in {*self._seen_markers(self.root), *inner}:
                self._recheck[marker] = self._ask_again(marker)

    def version(self, key: str) -> bytes | None:
        """Return what `Bucket.generation` does."""
        if key not in self._versions:
            listed = self._listed(key)
            is_known = listed is False or bool(listed)
            self._versions[key] = listed or None if is_known else self._bucket.generation(key)
        return self._versions[key]

    def document(self, key: str) -> bytes | None:
        """Return the contents of a document that has been read or written, else None."""
        return self._known.get(key)

    def exists(self, key: str) -> bool | None:
        """Return whether there is such an object, None if no listing shows it."""
        found = self._listed(key)
        return None if found is None else found is not False

    def listing(self, prefix: str) -> list[str] | None:
        """Return the keys below a prefix; None if the view does not know them."""
        found = self._page(self._root)
        if found is None or not prefix.startswith(self._root):
            return None
        changes = self._changes.copy()
        keys = {key for key in found if changes.get(key, True)}
        keys.update(key for key, exists in changes.items() if exists)
        return sorted(key[len(prefix) :] for key in keys if key.startswith(prefix))

    def once(self, what: str, prefix: str, request: Callable[[], Any]) -> Any:
        """Return the result of a request that is sent once."""
        if (what, prefix) not in self._others:
            self._others[what, prefix] = request()
        return self._others[what, prefix]

    @property
    def is_stale(self) -> bool:
        """Whether it answers nothing any more."""
        return self._is_stale

    def _listed(self, key: str) -> bytes | Literal[False] | None:
        """Return the version of an object, b"" if unknown, False if it does not exist.

        None if no listing says whether it exists.
        """
        changed = self._changes.get(key)
        if changed is not None:
            return b"" if changed else False
        for prefix in self._listings:
            rest = key.removeprefix(prefix)
            is_beside = prefix != self._root
            if not key.startswith(prefix) or (is_beside and "/" in rest):
                continue
            page = None if is_beside and rest <= _BEFORE_STEPS else self._page(prefix)
            if page is not None:
                return (page[key] or b"") if key in page else False
        return None

    def _page(self, prefix: str) -> dict[str, bytes | None] | None:
        """Return the versions of all objects of a listing by key; None if there were too many."""
        listing = self._listings.get(prefix)
        try:
            found = listing.result() if listing is not None else None
        except StorageError:
            if prefix == self._root:
                raise
            found = None  # the right to list may end at the root
        if found is None or not found[1]:
            return None
        return self.once(
            "page", prefix, lambda: {f"{prefix}{one.key}": one.version for one in found[0]}
        )

    def _relatives(self, key: str) -> list[str]:
        """Return the keys of the documents beside, above and below one, unless they are many."""
        page = self._page(self._root) or {}
        folder = key.rpartition("/")[0]
        above = folder.rpartition("/")[0]
        found = [
            other
            for other in page
            if other.rpartition("/")[2] in _TOGETHER and other not in self._known
        ]
        near = [
            other
            for other in found
            if other.rpartition("/")[0] in {folder, above}
            or other.rpartition("/")[0].rpartition("/")[0] == folder
        ]
        beside = [other for other in near if other.rpartition("/")[0] in {folder, above}]
        return near if len(near) <= _MOST_DOCUMENTS else beside

    def _ask_again(self, key: str) -> Future[bytes | None]:
        return self._pool.submit(self._bucket.generation, key)


class _ViewedBucket(Bucket):
    """A bucket of which a view answers what it can."""

    def __init__(self, bucket: Bucket, view: StoreView) -> None:
        self.url = bucket.url
        self.part_bytes = bucket.part_bytes
        self._bucket = bucket
        self._view = view

    @override
    def spec(self, prefix: str) -> dict[str, Any]:
        return self._bucket.spec(prefix)

    @override
    def read(self, key: str, *, deadline_s: float | None = None) -> bytes | None:
        return self._view.read(key)

    @override
    def generation(self, key: str) -> bytes | None:
        return self._view.version(key)

    @override
    def exists(self, key: str) -> bool:
        found = self._view.exists(key)
        return super().exists(key) if found is None else found

    @override
    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        if self._view.exists(key) is False:
            raise FileNotFoundError(2, "No such object", f"{self.url}/{key}")
        known = self._view.document(key)
        if known is not None:
            return scatter(known[offset:], buffers)
        return self._bucket.read_into(key, offset, buffers)

    @override
    def size(self, key: str, guess: int = 0) -> int:
        return self._view.once("size", key, lambda: self._bucket.size(key, guess))

    @override
    def begin_write(self, key: str, data: bytes) -> object:
        self._view.changed(key, data)
        return self._bucket.begin_write(key, data)

    @override
    def end_write(self, key: str, pending: Any, *, deadline_s: float | None = None) -> None:
        try:
            self._bucket.end_write(key, pending, deadline_s=deadline_s)
        except BaseException:
            self._view.invalidate()  # it may have arrived or not
            raise

    @override
    def begin_parts(self, key: str) -> Parts:
        self._view.invalidate()
        return self._bucket.begin_parts(key)

    @override
    def delete(self, key: str, *, deadline_s: float | None = None) -> None:
        if self._view.exists(key) is False:
            return
        self._view.changed(key, None)
        self._bucket.delete(key, deadline_s=deadline_s)

    @override
    def delete_below(self, prefix: str, *, last: str, deadline_s: float | None = None) -> None:
        self._view.invalidate()
        self._bucket.delete_below(prefix, last=last, deadline_s=deadline_s)

    @override
    def list_below(self, prefix: str) -> list[str]:
        known = self._view.listing(prefix)
        if known is not None:
            return known
        return self._view.once("below", prefix, lambda: self._bucket.list_below(prefix))

    @override
    def list_page(
        self, prefix: str, delimiter: str = "", start: str = ""
    ) -> tuple[list[FoundObject], bool] | None:
        known = None if delimiter or start else self._view.listing(prefix)
        if known is not None:
            return [FoundObject(key, None) for key in known], True
        what = f"page{delimiter}{start}"
        ask = self._bucket.list_page
        return self._view.once(what, prefix, lambda: ask(prefix, delimiter, start))

    @override
    def list_directory(self, prefix: str) -> tuple[list[str], list[str]]:
        if self._view.listing(prefix) is not None:
            return super().list_directory(prefix)
        ask = self._bucket.list_directory
        return self._view.once("directory", prefix, lambda: ask(prefix))


class _Views:
    """The views of an operation; called with a path and its bucket, returns the bucket as seen."""

    def __init__(self, views: Sequence[StoreView], outer: object) -> None:
        self._views = list(views)
        self._outer = outer if isinstance(outer, _Views) else None

    def __call__(self, path: StorePath, bucket: Bucket) -> Bucket:
        found = [view for view in self._views if view.is_of(bucket) and not view.is_stale]
        for view in found:
            if view.covers(path) or len(found) == 1:
                return view.bucket()
        return bucket if self._outer is None else self._outer(path, bucket)

    def list_anew(self) -> None:
        """Replace all views by new ones."""
        self._views = [StoreView(view.root, beside=view.is_for_reading) for view in self._views]
        if self._outer is not None:
            self._outer.list_anew()

    def covering(self, path: StorePath) -> StoreView | None:
        """Return the view that a path lies in, None without one."""
        for view in self._views:
            if view.covers(path) and view.is_of(path.own_bucket()) and not view.is_stale:
                return view
        return None if self._outer is None else self._outer.covering(path)


@contextmanager
def viewing(
    paths: Iterable[Path], *, anew: bool = False, beside: bool = True
) -> Generator[list[StoreView]]:
    """Open a view of each path in a store for the length of a `with` block.

    Args:
        paths: The paths; one that lies in a view that is open already needs none of its own.
        anew: Whether it does need one, because what was seen is out of date.
        beside: Whether what is right beside the paths is asked for too, to read checkpoints.

    Yields:
        The views of the paths in stores, in order.
    """
    outer = current_view.get()
    views: list[StoreView] = []
    for path in paths:
        if isinstance(path, StorePath):
            known = outer.covering(path) if isinstance(outer, _Views) and not anew else None
            views.append(known or StoreView(path, beside=beside))
    if not views:
        yield views
        return
    token = current_view.set(_Views(views, outer))
    try:
        yield views
    finally:
        current_view.reset(token)


def list_anew() -> None:
    """Forget what the open views have seen, because other code has written to the store."""
    views = current_view.get()
    if isinstance(views, _Views):
        views.list_anew()


def commit_markers(path: StorePath) -> list[StorePath]:
    """Return the markers that identify a checkpoint, or an item of one."""
    # an item's marker does not: it is always the same
    return [place / COMMIT_MARKER for place in (path, path.parent)[: 1 + bool(path.key)]]
