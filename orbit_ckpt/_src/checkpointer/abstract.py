"""Orbax's interface of checkpointers."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from orbit_ckpt._src.storage.path import PathLike


@runtime_checkable
class AbstractCheckpointer(Protocol):
    """Saves and restores checkpoints of one item."""

    def save(self, directory: PathLike, *args: Any, **kwargs: Any) -> None:
        """Save the item into a new directory."""
        ...

    def restore(self, directory: PathLike, *args: Any, **kwargs: Any) -> Any:
        """Return the item saved in a directory."""
        ...

    def structure(self, directory: PathLike) -> Any:  # noqa: ARG002 - for subclasses
        """Return the structure of the saved item; the base has none."""
        return None

    def metadata(self, directory: PathLike) -> Any:  # noqa: ARG002 - for subclasses
        """Return metadata of the saved item; the base has none."""
        return None

    def close(self) -> None:
        """Release resources; the base has none."""
