"""Object stores: the interface of a bucket, and the clients of stores that plug-ins provide.

Built-in stores are buckets of TensorStore's drivers (`buckets`); a client of any other store
becomes a bucket in `client_bucket`.
"""

from __future__ import annotations

import contextlib
import re
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.plugins import PluginRegistry
from orbit_ckpt._src.runtime.checks import as_flag, check_callable, show

BUILT_IN_SCHEMES = ("gs", "memory", "s3")
"""Schemes of URLs of built-in stores; `memory` is one of this process, for tests."""

_OTHER_URLS = ("file", "http", "https")
"""Schemes that no store can have."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


class FoundObject(NamedTuple):
    """An object in a listing.

    Attributes:
        key: Its key, without the prefix that was listed.
        version: What `generation` returns; None if the listing does not say.
    """

    key: str
    version: bytes | None


class Parts(Protocol):
    """An upload of one object in parts, which exists once `complete` has returned."""

    def begin(self, data: bytes) -> object:
        """Begin to send the next part; return what `end` needs to wait for it."""
        ...

    def end(self, pending: Any, *, deadline_s: float | None = None) -> None:
        """Wait until a part is stored."""
        ...

    def complete(self) -> None:
        """Make the object of all parts, which have ended; it is durable and visible then."""
        ...

    def abort(self, *, deadline_s: float | None = None) -> None:
        """Delete all parts, which have ended; there will be no object."""
        ...


class Bucket(Protocol):
    """The objects of one bucket by key; every failure of the store is a `StorageError`.

    Attributes:
        url: Its URL, without a slash at the end.
        part_bytes: Size of the parts in which large objects are best sent; 0 if only whole.
    """

    url: str
    part_bytes: int = 0

    def spec(self, prefix: str) -> dict[str, Any]:
        """Return TensorStore's spec of the objects below a prefix.

        Raises:
            NotInTensorStoreError: It has no driver for this store.
        """
        ...

    def read(self, key: str, *, deadline_s: float | None = None) -> bytes | None:
        """Return the contents of an object, None if it does not exist."""
        ...

    def generation(self, key: str) -> bytes | None:
        """Return a value that changes with every write of an object, None if it does not exist."""
        ...

    def exists(self, key: str) -> bool:
        """Return whether there is such an object."""
        return self.generation(key) is not None

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        """Fill buffers one after the other with bytes of an object; return their number.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        ...

    def read_range(self, key: str, offset: int, nbytes: int) -> bytes:
        """Return bytes of an object, fewer if it ends early.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        buffer = memoryview(bytearray(nbytes))
        return bytes(buffer[: self.read_into(key, offset, [buffer])])

    def size(self, key: str, guess: int = 0) -> int:
        """Return the size of an object.

        Args:
            key: Its key.
            guess: Its probable size, which may spare requests.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        ...

    def write(self, key: str, data: bytes) -> None:
        """Write an object; when this returns it is durable and visible."""
        self.end_write(key, self.begin_write(key, data))

    def begin_write(self, key: str, data: bytes) -> object:
        """Begin to write an object; return what `end_write` needs to wait for it.

        Raises:
            StorageError: It exceeds the maximum size of an object.
        """
        ...

    def end_write(self, key: str, pending: Any, *, deadline_s: float | None = None) -> None:
        """Wait until an object is written."""
        ...

    def begin_parts(self, key: str) -> Parts:
        """Begin to write an object in parts of `part_bytes`; only the last may be smaller."""
        raise StorageError(f"{self.url}/{key}: this store takes only whole objects.")

    def delete(self, key: str, *, deadline_s: float | None = None) -> None:
        """Delete an object if it exists."""
        ...

    def delete_below(self, prefix: str, *, last: str, deadline_s: float | None = None) -> None:
        """Delete all objects whose keys begin with a prefix, many at a time.

        Args:
            prefix: The prefix.
            last: The rest of the key of the object to delete after all others.
            deadline_s: Maximum wait for each of these requests.
        """
        ...

    def list_below(self, prefix: str) -> list[str]:
        """Return the keys of all objects that begin with a prefix, without it, in order."""
        ...

    def list_page(  # what most stores do
        self,
        prefix: str,  # noqa: ARG002 - overrides use it
        delimiter: str = "",  # noqa: ARG002 - overrides use it
        start: str = "",  # noqa: ARG002 - overrides use it
    ) -> tuple[list[FoundObject], bool] | None:
        """List objects in one request.

        Args:
            prefix: What their keys begin with.
            delimiter: "/" to omit objects in directories.
            start: Keys up to this one, after the prefix, are omitted.

        Returns:
            The first of them, and whether these are all; None if a listing cannot be limited.
        """
        return None

    def list_directory(self, prefix: str) -> tuple[list[str], list[str]]:
        """Return the names of the objects right below a prefix, and of directories, in order."""
        keys = self.list_below(prefix)
        objects = [key for key in keys if "/" not in key]
        return objects, sorted({key.partition("/")[0] for key in keys if "/" in key})


@runtime_checkable
class ObjectClient(Protocol):
    """Requests to one bucket of a store, by key; from several threads at once.

    A method may raise any exception if the store fails, after its own retries; saves and loads
    report it as a `StorageError` with the URL. A write, a delete and a listing must see all writes
    and deletes that returned before, as in S3 and Google's store.
    """

    @abstractmethod
    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return bytes of an object, fewer if it ends early; None if it does not exist.

        Args:
            key: Its key.
            start: Index of the first byte; there may be none from there on.
            stop: Index after the last byte, None for all.
        """
        ...

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, None if it does not exist."""
        ...

    @abstractmethod
    def version(self, key: str) -> bytes | None:
        """Return what changes with every write, such as an ETag; None if it does not exist."""
        ...

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Create or replace an object; readers see the old or the new one, never a part."""
        ...

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object; do nothing if it does not exist."""
        ...

    @abstractmethod
    def list(self, prefix: str) -> Iterable[str]:
        """Return the keys of all objects that begin with a prefix, in any order."""
        ...


@runtime_checkable
class PartsClient(ObjectClient, Protocol):
    """A client that can do more than a store of a plug-in must."""

    @abstractmethod
    def read_into(self, key: str, start: int, buffer: memoryview) -> int | None:
        """Fill a buffer with bytes of an object; return their number, None without an object."""
        ...

    @abstractmethod
    def list_page(self, prefix: str, delimiter: str, start: str) -> tuple[list[FoundObject], bool]:
        """Return what `Bucket.list_page` does, in one request."""
        ...

    @abstractmethod
    def list_directory(self, prefix: str) -> tuple[list[str], list[str]]:
        """Return what `Bucket.list_directory` does, a thousand names per request."""
        ...

    @abstractmethod
    def begin_parts(self, key: str) -> str:
        """Begin an upload in parts; return its identity."""
        ...

    @abstractmethod
    def write_part(self, key: str, upload: str, number: int, data: bytes) -> object:
        """Store a part, counted from 1; return what `complete_parts` needs of it."""
        ...

    @abstractmethod
    def complete_parts(self, key: str, upload: str, parts: Sequence[object]) -> None:
        """Make the object of its parts."""
        ...

    @abstractmethod
    def abort_parts(self, key: str, upload: str) -> None:
        """Delete the parts of an upload."""
        ...

    @abstractmethod
    def uploads_below(self, prefix: str) -> list[tuple[str, str]]:
        """Return the keys and identities of uploads that were neither completed nor aborted."""
        ...


OpenClient = Callable[[str], ObjectClient]
"""Opens a bucket of a store from its name, the part of the URL after the scheme."""

_registered: dict[str, OpenClient] = {}


def register_store(scheme: str, open_client: OpenClient, *, override: bool = False) -> None:
    """Let paths `SCHEME://bucket/key` lie in a store, in this program.

    Args:
        scheme: The scheme of the URLs, in lower case.
        open_client: Returns the client of a bucket from its name; called once per bucket.
        override: Whether to replace what is registered for the scheme, or a built-in store.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The scheme is not one, is taken, or is built in and `override` is not set.
    """
    if not isinstance(scheme, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
        raise TypeError(f"scheme must be a str, found {show(scheme)}. Give 'az', for example.")
    if not _SCHEME.fullmatch(scheme) or scheme in _OTHER_URLS:
        raise ValueError(
            f"{scheme!r} cannot be the scheme of a store's URLs. Give 'az', for example."
        )
    check_callable("open_client", open_client, "Give a function that opens a bucket by its name.")
    is_taken = scheme in _registered or scheme in BUILT_IN_SCHEMES
    if is_taken and not as_flag("override", override):
        raise ValueError(
            f"{scheme}:// has a store already. Pass override=True to replace it, or choose another "
            "scheme."
        )
    _registered[scheme] = open_client


@contextlib.contextmanager
def temporary_store(scheme: str, open_client: OpenClient) -> Generator[None]:
    """Register a store for the length of a `with` block."""
    register_store(scheme, open_client)
    try:
        yield
    finally:
        del _registered[scheme]


def find_store(scheme: str) -> OpenClient | None:
    """Return how to open a bucket: registered in this program, else of a plug-in.

    Raises:
        PluginConflictError: Several plug-ins have a store of the scheme, and none is preferred.
    """
    return _registered.get(scheme) or (
        None if scheme in BUILT_IN_SCHEMES else PLUGINS.named(scheme)
    )


def is_store_scheme(scheme: str) -> bool:
    """Return whether URLs of a scheme lie in a store that can be opened."""
    if scheme in BUILT_IN_SCHEMES or scheme in _registered:
        return True
    return scheme not in _OTHER_URLS and scheme in PLUGINS.names()


def _prepare_plugin(plugin: object) -> OpenClient:
    """Return the function of a plug-in that opens a bucket.

    Raises:
        TypeError: It cannot be called.
    """
    if not callable(plugin):
        raise TypeError(f"{plugin!r} is no function that opens a bucket by its name")
    return cast(OpenClient, plugin)


PLUGINS = PluginRegistry("orbit_ckpt.stores", _prepare_plugin)
"""Stores of installed packages; the entry points have their schemes as names."""
