"""The interface of data iterators, and a small deterministic one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from typing_extensions import override

from orbit_ckpt_dataloader.resplit import same_steps

T = TypeVar("T")

Resplit = Callable[[Sequence[Any], int, int], object]
"""Makes the state of one process from those of all that saved: `(states, process, count)`."""


class DataIterator(Protocol):
    """What can be saved: an iterator with a state; those of grain are such."""

    def get_state(self) -> Any:
        """Return the state: a JSON value, or bytes of JSON text."""
        ...

    def set_state(self, state: Any) -> None:
        """Continue from a state that `get_state` returned."""
        ...


@runtime_checkable
class Resplittable(Protocol):
    """Optional addition to a `DataIterator`: it continues on another number of processes."""

    def resplit(self, states: Sequence[Any], process: int, count: int) -> object:
        """Return the state of one of `count` processes, from those of all that saved."""
        ...


class ShardedLoader(Iterator[list[T]], Generic[T]):
    """Yields this process's share of shuffled global batches, epoch after epoch.

    The order depends on the seed only, not on the number of processes.

    Args:
        source: The examples.
        batch_size: Examples of a global batch, which all processes together yield in a step.
        seed: Seed of the order; None for the order of the source.
        process: The index of the process, by default that of JAX.
        count: The number of processes, by default that of JAX.

    Raises:
        ValueError: The processes cannot share a batch equally, or there are no examples.
    """

    def __init__(
        self,
        source: Sequence[T],
        *,
        batch_size: int,
        seed: int | None = None,
        process: int | None = None,
        count: int | None = None,
    ) -> None:
        self._process = jax.process_index() if process is None else process
        self._count = jax.process_count() if count is None else count
        if batch_size < 1 or batch_size % self._count:
            raise ValueError(
                f"batch_size={batch_size} cannot be divided among {self._count} processes"
            )
        if not source:
            raise ValueError("source has no examples")
        self._source = source
        self._batch_size = batch_size
        self._seed = seed
        self._position = 0
        self._order: tuple[int, np.ndarray] | None = None

    @override
    def __next__(self) -> list[T]:
        share = self._batch_size // self._count
        first = self._position + self._process * share
        self._position += self._batch_size
        return [self._example(at) for at in range(first, first + share)]

    def get_state(self) -> dict[str, object]:
        """Return how many examples all processes together have yielded, and of what."""
        return {"position": self._position, **self._identity()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ValueError: It is the state of another loader.
        """
        found = {name: state.get(name) for name in self._identity()}
        if found != self._identity():
            raise ValueError(f"the state is that of a loader of {found}, not {self._identity()}")
        self._position = state["position"]

    def resplit(self, states: Sequence[Any], process: int, count: int) -> object:
        """Return the state of one of `count` processes; it counts the examples of all."""
        return same_steps(states, process, count)

    def _identity(self) -> dict[str, object]:
        return {"examples": len(self._source), "seed": self._seed}

    def _example(self, at: int) -> T:
        epoch, index = divmod(at, len(self._source))
        if self._seed is None:
            return self._source[index]
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng([self._seed, epoch])
            self._order = epoch, rng.permutation(len(self._source))
        return self._source[int(self._order[1][index])]
