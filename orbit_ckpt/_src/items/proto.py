"""A protocol buffer as an item, in text format."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from orbit_ckpt._src.errors import CheckpointNotFoundError, FormatError, MissingPackageError
from orbit_ckpt._src.items.arguments import CheckpointArgs
from orbit_ckpt._src.items.base import ORBAX_PREFIX, item_name, warn_of_unused
from orbit_ckpt._src.items.phases import ItemHandler
from orbit_ckpt._src.runtime.checks import check_type
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.runtime.process import this_process
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.integrity import open_checked, write_manifest
from orbit_ckpt._src.storage.path import PathLike, describe_directory, resolve_path

if TYPE_CHECKING:
    from google.protobuf.message import Message


@dataclass
class ProtoSaveArgs(CheckpointArgs):
    """A protocol buffer to save.

    Attributes:
        item: The message.
    """

    item: Message


@dataclass
class ProtoRestoreArgs(CheckpointArgs):
    """How to restore a protocol buffer.

    Attributes:
        item: Class of the message.
    """

    item: type[Message]


class ProtoHandler(
    ItemHandler[ProtoSaveArgs], save_args=ProtoSaveArgs, restore_args=ProtoRestoreArgs
):
    """Saves and restores a protocol buffer; requires `protobuf`."""

    def __init__(
        self, filename: str = "proto.pbtxt", *, multiprocessing_options: object = None
    ) -> None:
        """Make a handler.

        Args:
            filename: Name of the file in the item's directory.
            multiprocessing_options: Ignored; give it to the checkpointer or manager.
        """
        warn_of_unused(self, multiprocessing_options=multiprocessing_options)
        check_type("filename", filename, str, "a str", "Give the name of a file.")
        self._filename = filename

    @classmethod
    def typestr(cls) -> str:
        """Return the name that checkpoints record; Orbax's own."""
        return f"{ORBAX_PREFIX}proto_checkpoint_handler.ProtoCheckpointHandler"

    @override
    async def stage(self, directory: Path, args: ProtoSaveArgs, *, copy: bool) -> Commit:
        """Copy the message.

        Raises:
            TypeError: It is not a message.
            ValueError: It has fields that its class does not define.
        """
        text = _encode(item_name(directory), args.item)

        async def write() -> None:
            if this_process().is_primary:
                await asyncio.to_thread(write_file, directory / self._filename, text)

        return Commit(write, lambda: write_manifest(directory))

    @override
    def restore(
        self,
        directory: PathLike,
        item: type[Message] | None = None,
        args: ProtoRestoreArgs | None = None,
    ) -> Any:  # a message of the class asked for
        """Read a message.

        Args:
            directory: Where it is.
            item: Class of the message, if `args` is not given.
            args: Arguments of the restore.

        Raises:
            CheckpointNotFoundError: The file does not exist.
            FormatError: It is not such a message in text format.
            TypeError: No message class is given.
        """
        path = resolve_path(directory)
        kind = _message_class(path, args.item if args is not None else item)
        data = open_checked(path).read_bytes(self._filename)
        if data is None:
            raise CheckpointNotFoundError(
                f"No protocol buffer at {path}: there is no file {self._filename!r} "
                f"({describe_directory(path)})."
            )
        return _decode(data, kind, str(path / self._filename))


def _encode(name: str, message: Message) -> bytes:
    base, text_format = _protobuf()
    if not isinstance(cast(object, message), base):
        raise TypeError(
            f"{name}: expected a message of protobuf, found {type(message).__qualname__}. Use "
            "JsonSave or PyTreeSave for other values."
        )
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() != message.ByteSize():
        raise ValueError(
            f"{name}: the {message.DESCRIPTOR.full_name} has fields that its class does not know; "
            "the text form would lose them. Use the definition that it was made with, or call "
            "DiscardUnknownFields()."
        )
    return text_format.MessageToString(message).encode()


def _message_class(path: Path, kind: object) -> type[Message]:
    base, _ = _protobuf()
    if isinstance(kind, type) and issubclass(kind, base):
        return kind
    raise TypeError(
        f"{path}: give the class of the message, as in ProtoRestore(MyMessage): the text form does "
        f"not say which it is; found {kind!r}"
    )


def _decode(data: bytes, kind: type[Message], where: str) -> Message:
    _, text_format = _protobuf()
    try:
        return text_format.Parse(data.decode(), kind())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{where}: expected the text form of a {kind.DESCRIPTOR.full_name}: {error}. The file "
            "is damaged, or is of another message."
        ) from error


def _protobuf() -> tuple[type[Message], Any]:
    """Return the base class of messages and the module of the text format.

    Raises:
        MissingPackageError: `protobuf` is not installed.
    """
    try:
        from google.protobuf import text_format  # noqa: PLC0415 - optional
        from google.protobuf.message import Message  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingPackageError(
            f"Items of protocol buffers need the package protobuf, which cannot be imported "
            f"({error}). Install it: pip install protobuf"
        ) from error
    return Message, text_format
