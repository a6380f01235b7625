"""The handlers of JSON values, protocol buffers and stateful objects."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast, final

from typing_extensions import override

from orbit_ckpt._src.items.json import JsonHandler as JsonItem
from orbit_ckpt._src.items.json import JsonSaveArgs
from orbit_ckpt._src.items.proto import ProtoHandler as ProtoItem
from orbit_ckpt._src.items.proto import ProtoSaveArgs
from orbit_ckpt._src.metadata.user_json import encode_user_json
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.v1.engine_handler import RECORDED, EngineHandler
from orbit_ckpt._src.v1.types import (
    CheckpointableHandler,
    PathAwaitingCreation,
    StatefulCheckpointable,
)

METRICS = "metrics"
"""The name of the metrics of a step, which users cannot give to a checkpointable."""


@final
class JsonHandler(EngineHandler):
    """Saves and loads JSON values."""

    RECORDED_AS = f"{RECORDED}json_handler.JsonHandler"

    def __init__(self, filename: str | None = None) -> None:
        """Make a handler.

        Args:
            filename: Name of the file, `data.json` by default.
        """
        self._filename = filename or "data.json"
        self._has_own_name = filename is not None

    @override
    async def stage(self, directory: Path, checkpointable: Any, *, copy: bool) -> Commit:
        """Encode the value."""
        return await JsonItem(self._filename).stage(
            directory, JsonSaveArgs(checkpointable), copy=copy
        )

    @override
    def read(self, directory: Path, abstract: Any) -> Any:
        """Return the value."""
        return JsonItem(self._filename if self._has_own_name else None).restore(directory)

    @override
    def is_handleable(self, checkpointable: Any) -> bool:
        """Return whether it is JSON."""
        try:
            encode_user_json(checkpointable)
        except (TypeError, ValueError, RecursionError):
            return False
        return True

    @override
    def is_abstract_handleable(self, abstract_checkpointable: Any) -> None:
        """Return None: a value is loaded as it was saved."""
        return


@final
class MetricsHandler(EngineHandler):
    """Saves and loads the metrics of a step."""

    RECORDED_AS = f"{RECORDED}json_handler.MetricsHandler"

    def __init__(self) -> None:
        self._json = JsonHandler(METRICS)

    @override
    async def stage(self, directory: Path, checkpointable: Any, *, copy: bool) -> Commit:
        """Encode the metrics."""
        return await self._json.stage(directory, checkpointable, copy=copy)

    @override
    def read(self, directory: Path, abstract: Any) -> Any:
        """Return the metrics."""
        return self._json.read(directory, abstract)

    @override
    def is_handleable(self, checkpointable: Any) -> bool:
        """Return whether they are JSON."""
        return self._json.is_handleable(checkpointable)

    @override
    def is_abstract_handleable(self, abstract_checkpointable: Any) -> None:
        """Return None: metrics are loaded as they were saved."""
        return


@final
class ProtoHandler(EngineHandler):
    """Saves and loads protocol buffers; requires `protobuf`."""

    RECORDED_AS = f"{RECORDED}proto_handler.ProtoHandler"

    def __init__(self, filename: str = "proto.pbtxt") -> None:
        """Make a handler.

        Args:
            filename: Name of the file.
        """
        self._item = ProtoItem(filename)

    @override
    async def stage(self, directory: Path, checkpointable: Any, *, copy: bool) -> Commit:
        """Copy the message."""
        return await self._item.stage(directory, ProtoSaveArgs(checkpointable), copy=copy)

    @override
    def read(self, directory: Path, abstract: Any) -> Any:
        """Return the message; the abstract form is its class.

        Raises:
            ValueError: It is not given.
        """
        if abstract is None:
            raise ValueError(
                f"{directory.name}: give the class of the message as the abstract checkpointable; "
                "the file does not say which it is."
            )
        return self._item.restore(directory, abstract)

    @override
    def is_handleable(self, checkpointable: Any) -> bool:
        """Return whether it is a message."""
        return _is_message_class(cast(object, checkpointable).__class__)

    @override
    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool:
        """Return whether it is the class of a message."""
        kind: object = abstract_checkpointable
        return isinstance(kind, type) and _is_message_class(kind)


def _is_message_class(kind: type) -> bool:
    """Return whether a class is one of protobuf's messages, without importing that."""
    return any(
        base.__module__ == "google.protobuf.message" and base.__name__ == "Message"
        for base in kind.__mro__
    )


@final
class StatefulCheckpointableHandler(CheckpointableHandler[Any, Any]):
    """Lets an object save itself and load its own state."""

    RECORDED_AS = f"{RECORDED}stateful_checkpointable_handler.StatefulCheckpointableHandler"

    @override
    async def save(
        self, directory: PathAwaitingCreation, checkpointable: StatefulCheckpointable
    ) -> Awaitable[None]:
        """Call the object's own `save`."""
        return await checkpointable.save(directory)

    @override
    async def load(
        self, directory: Path, abstract_checkpointable: StatefulCheckpointable | None = None
    ) -> Awaitable[Any]:
        """Call the object's own `load`; the awaitable returns the object.

        Raises:
            ValueError: No object is given.
        """
        if abstract_checkpointable is None:
            raise ValueError(
                f"{directory.name}: give an object that receives the state as the abstract "
                "checkpointable; nothing records its class."
            )
        loading = await abstract_checkpointable.load(directory)

        async def finish() -> object:
            await loading
            return abstract_checkpointable

        return finish()

    @override
    async def metadata(self, directory: Path) -> Any:
        """Refuse: only the object knows its state.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(f"{directory.name}: an object's own state has no metadata")

    @override
    def is_handleable(self, checkpointable: Any) -> bool:
        """Return whether it is such an object."""
        return isinstance(checkpointable, StatefulCheckpointable)

    @override
    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool:
        """Return whether it is such an object."""
        return isinstance(abstract_checkpointable, StatefulCheckpointable)
