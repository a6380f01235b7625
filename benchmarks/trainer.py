"""The training loop of a worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from benchmarks.clock import Meter
from benchmarks.results import Laps
from benchmarks.verify import verify


class Saves(Protocol):
    """Saves in the background, one after the other."""

    def save(self, step: int, tree: object) -> None:
        """Start a save; first wait for the previous one."""
        ...

    def wait(self) -> None:
        """Wait for the last save."""
        ...

    def load(self, step: int, like: object) -> object:
        """Load a step."""
        ...

    def close(self) -> None:
        """Wait for the last save and release what it holds."""
        ...


class CanTrain(Protocol):
    """A contender that can save in a training loop."""

    def saves(self, directory: Path) -> Saves:
        """Return what saves all steps of a run."""
        ...


class Trainer:
    """Repeats a step that changes every leaf, with or without saves.

    All runs go on from the state of the run before, and save with the same manager.

    Args:
        tree: The initial state.
        contender: What saves.
        directory: Directory of the saves.
        donate: Whether a step may reuse the memory of its arguments.
    """

    def __init__(self, tree: object, contender: CanTrain, directory: Path, *, donate: bool) -> None:
        self._step: Callable[[Any], Any] = jax.jit(_update, donate_argnums=0 if donate else ())
        # A copy, because the contender holds the tree, which a donation would delete.
        self._state = jax.block_until_ready(self._step(jax.tree.map(jnp.copy, tree)))
        self._saves = contender.saves(directory)
        self._number = 0

    def run(self, steps: int, every: int) -> Laps:
        """Do steps, and save after the first of every `every`; 0 saves nothing."""
        times: list[float] = []
        blocked: list[float] = []
        meter = Meter()
        for number in range(steps):
            start = time.perf_counter()
            self._state = jax.block_until_ready(self._step(self._state))
            times.append(time.perf_counter() - start)
            self._number += 1
            if every and number % every == 0:
                start = time.perf_counter()
                self._saves.save(self._number, self._state)
                blocked.append(time.perf_counter() - start)
        if every:
            self._saves.wait()
        cost = meter.cost()
        return Laps(cost.seconds, cost.processor_s, times, blocked)

    def check(self) -> None:
        """Save during steps, and compare what was saved with the state at that time.

        Raises:
            WrongValueError: A later step changed what was saved.
        """
        expected = jax.tree.map(jnp.copy, self._state)
        self._number += 1
        self._saves.save(self._number, self._state)
        for _ in range(3):
            self._state = self._step(self._state)
        self._saves.wait()
        verify(self._saves.load(self._number, expected), expected, array_type=jax.Array)

    def close(self) -> None:
        """Release the manager."""
        self._saves.close()


def _update(tree: object) -> object:
    """Return a tree in which all numbers but zeros are others."""
    return jax.tree.map(_updated, tree)


def _updated(leaf: jax.Array) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jnp.integer):
        return leaf + 1
    return leaf - leaf * jnp.asarray(0.01, leaf.dtype)  # enough for bfloat16 to change
