"""Orbax's handlers that write a tree into one file."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

from typing_extensions import override

from orbit_ckpt._src.errors import CheckpointNotFoundError, NotSupportedError
from orbit_ckpt._src.formats.flax_msgpack.memory import msgpack_restore, msgpack_serialize
from orbit_ckpt._src.items.pytree import PyTreeMetadataOptions
from orbit_ckpt._src.runtime.futures import CommitFutureAwaitingContractedSignals, Future
from orbit_ckpt._src.runtime.process import this_process
from orbit_ckpt._src.storage.path import PathLike, describe_directory, resolve_path
from orbit_ckpt._src.tree.flat_dict import serialize_tree


class AggregateHandler(Protocol):
    """Writes and reads a whole tree in one file."""

    @abstractmethod
    async def serialize(self, path: Any, item: Any) -> Future:
        """Start writing a tree; return the future of the write."""
        ...

    @abstractmethod
    def deserialize(self, path: Any) -> Any:
        """Return the tree in a file."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Release resources."""
        ...


class MsgpackHandler(AggregateHandler):
    """Writes and reads a tree in one msgpack file, as early releases of Orbax did.

    The write is not atomic; that of a `Checkpointer` or `save` is.
    """

    def __init__(
        self,
        primary_host: int | None = 0,
        pytree_metadata_options: PyTreeMetadataOptions = PyTreeMetadataOptions(),  # noqa: B008 - frozen
    ) -> None:
        """Make a handler.

        Args:
            primary_host: The process that writes, None for each.
            pytree_metadata_options: Rich types are not supported.

        Raises:
            NotSupportedError: Rich types are to be recorded.
        """
        if pytree_metadata_options.support_rich_types:
            raise NotSupportedError(
                "support_rich_types=True: msgpack files do not record tuples and namedtuples. Save "
                "with PyTreeCheckpointHandler, which does."
            )
        self._primary_host = primary_host

    @override
    async def serialize(self, path: PathLike, item: Any) -> Future:
        """Encode a tree; return the future of the write.

        Args:
            path: The file.
            item: A tree; its containers are written as dicts and lists.

        Raises:
            ValueError: A leaf is of a type that the format lacks.
        """
        file = resolve_path(path)
        is_writer = self._primary_host in (None, this_process().index)
        data = msgpack_serialize(serialize_tree(item, keep_empty_nodes=True)) if is_writer else None

        async def write() -> None:
            if data is not None:
                file.write_bytes(data)

        return CommitFutureAwaitingContractedSignals(write())

    @override
    def deserialize(self, path: PathLike) -> Any:
        """Return the tree in a file.

        Raises:
            CheckpointNotFoundError: The file does not exist.
            FormatError: It is damaged, or another file.
        """
        file = resolve_path(path)
        if not file.is_file():
            raise CheckpointNotFoundError(
                f"There is no msgpack file at {file}: {describe_directory(file)}. Give the path "
                "that was given to serialize()."
            )
        return msgpack_restore(file.read_bytes())

    @override
    def close(self) -> None:
        """Do nothing."""
