"""Items that handlers of the v0 API wrote and that the v1 API has no handler for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from typing_extensions import override

from orbit_ckpt._src.items.base import CheckpointHandler
from orbit_ckpt._src.items.json import JsonHandler
from orbit_ckpt._src.items.proto import ProtoHandler
from orbit_ckpt._src.items.pytree import PyTreeHandler
from orbit_ckpt._src.items.registry import find_handler_class
from orbit_ckpt._src.items.standard import StandardHandler
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.v1.engine_handler import EngineHandler


def stored_item_handler(typestr: str | None) -> StoredItemHandler | None:
    """Return a handler that loads what a handler of the v0 API wrote.

    Args:
        typestr: The recorded name of that handler, if any.

    Returns:
        None if no handler of that name is known, it cannot be made without arguments, or it wrote
        what handlers of the v1 API load: trees, JSON and protocol buffers.
    """
    if typestr is None:
        return None
    try:
        handler = find_handler_class(typestr)()
    except (TypeError, ValueError):
        return None
    return None if isinstance(handler, _OF_BOTH) else StoredItemHandler(handler)


_OF_BOTH = (PyTreeHandler, StandardHandler, JsonHandler, ProtoHandler)


@final
class StoredItemHandler(EngineHandler):
    """Loads an item as a handler of the v0 API restores it: random keys, single arrays."""

    def __init__(self, handler: CheckpointHandler) -> None:
        """Make it.

        Args:
            handler: Restores the item.
        """
        self._handler = handler

    @override
    async def stage(self, directory: Path, checkpointable: Any, *, copy: bool) -> Commit:
        """Refuse.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("Items of the v0 API are only loaded.")

    @override
    def read(self, directory: Path, abstract: Any) -> Any:
        """Return the item."""
        return self._handler.restore(directory)

    @override
    def is_handleable(self, checkpointable: Any) -> bool:
        """Return False: it saves nothing."""
        return False

    @override
    def is_abstract_handleable(self, abstract_checkpointable: Any) -> None:
        """Return None: an item is loaded as it was saved."""
        return
