"""The interfaces and type aliases of the v1 API."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format

from orbit_ckpt._src.storage.path import as_epath

T = TypeVar("T")
ResultT_co = TypeVar("ResultT_co", covariant=True)

PathLike = str | os.PathLike[str]
Shape = tuple[int, ...]
DType = jnp.dtype | np.dtype[Any]
Scalar = int | float | np.number[Any] | bytes | bool
AbstractScalar = Scalar

JsonType = Mapping[str, Any]


class PyTreeOf(Generic[T]):
    """A tree with leaves of one type; for annotations only."""


PyTreeMetadata = PyTreeOf["AbstractLeaf"]
"""A tree of leaf metadata in the structure of a saved tree."""


class AbstractArray(Protocol):
    """What describes an array that is loaded as one of NumPy."""

    shape: Shape | None
    dtype: DType | None


class AbstractShardedArray(Protocol):
    """What describes an array that is loaded as one of JAX."""

    shape: Shape | None
    dtype: DType | None
    sharding: jax.sharding.Sharding | Format | None = None


ArrayLike = AbstractArray | AbstractShardedArray
Leaf = jax.Array | np.ndarray | Scalar | str
AbstractLeaf = AbstractArray | AbstractShardedArray | AbstractScalar | str


class AsyncResponse(Protocol[ResultT_co]):
    """The result of an operation in the background."""

    def result(self, timeout: float | None = None) -> ResultT_co:
        """Wait for the operation, and return its result or raise its error.

        Raises:
            TimeoutError: It is still in progress after `timeout` seconds.
        """
        ...

    def on_complete(self, callback: Callable[[Any], object]) -> None:
        """Call a function with the result once the operation has succeeded, or now if it has."""
        ...


@runtime_checkable
class PathAwaitingCreation(Protocol):
    """A directory that a save may still have to create."""

    def __truediv__(self, other: PathLike) -> PathAwaitingCreation: ...

    @property
    def path(self) -> Path:
        """The path, at which nothing may exist yet."""
        ...

    async def await_creation(self) -> Path:
        """Return the path once the directory exists."""
        ...


class CreatedPath(PathAwaitingCreation):
    """A directory that exists: the engine makes directories before it calls handlers."""

    def __init__(self, path: Path) -> None:
        self._path = as_epath(path)

    def __truediv__(self, other: PathLike) -> CreatedPath:
        return CreatedPath(self._path / other)

    @property
    def path(self) -> Path:
        """The path."""
        return self._path

    async def await_creation(self) -> Path:
        """Return the path."""
        return self._path


class Checkpointable:
    """Anything that a handler saves; for annotations only."""


class AbstractCheckpointable:
    """What describes how to load a checkpointable; for annotations only."""


@runtime_checkable
class StatefulCheckpointable(Protocol):
    """An object that saves itself, and loads its own state."""

    async def save(self, directory: PathAwaitingCreation) -> Awaitable[None]:
        """Copy what may change, and return an awaitable that writes it."""
        ...

    async def load(self, directory: Path) -> Awaitable[None]:
        """Return an awaitable that reads the state and puts it into the object."""
        ...


CheckpointableT = TypeVar("CheckpointableT")
AbstractT = TypeVar("AbstractT")


class CheckpointableHandler(Protocol[CheckpointableT, AbstractT]):
    """Saves and loads checkpointables of some types, each in its own directory."""

    async def save(
        self, directory: PathAwaitingCreation, checkpointable: CheckpointableT
    ) -> Awaitable[None]:
        """Copy what may change, and return an awaitable that writes it."""
        ...

    async def load(
        self, directory: Path, abstract_checkpointable: AbstractT | None = None
    ) -> Awaitable[CheckpointableT]:
        """Return an awaitable that reads the checkpointable.

        Args:
            directory: Where it is.
            abstract_checkpointable: How to load it, None for as it was saved.
        """
        ...

    async def metadata(self, directory: Path) -> AbstractT:
        """Return an abstract form with which `load` loads the checkpointable."""
        ...

    def is_handleable(self, checkpointable: Any) -> bool:
        """Return whether this handler saves such a value."""
        ...

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        """Return whether this handler loads by such an abstract value."""
        ...


Handler = CheckpointableHandler[Any, Any]
HandlerEntry = tuple[type[Handler], str | None]
Typestrs = Sequence[str]
