"""Run the same steps with this library and with Orbax, and compare what comes out."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint.experimental.v1 as orbax
import pytest

import orbit_ckpt.v1 as ours

LIBRARIES: dict[str, Any] = {"ours": ours, "orbax": orbax}

LEAKS = pytest.mark.filterwarnings(
    "ignore:coroutine '_create_paths':RuntimeWarning",
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning",
)
"""Of Orbax, when a save fails."""

Steps = Callable[[Any, Path], object]
"""Takes a library and a directory of its own; returns what to compare."""


def outcome(call: Callable[[], object]) -> object:
    """Return the plain form of a result, or the built-in classes of an error."""
    try:
        return plain(call())
    except Exception as error:  # noqa: BLE001 - that is what is compared
        return first_built_in(error)


def first_built_in(error: BaseException) -> str:
    """Return the first built-in class of an error that is no base of all."""
    kinds = [kind for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    return f"raises {kinds[0].__name__}"


def raises(steps: Callable[[], object], name: str) -> bool:
    """Return whether a call raises an error of a built-in class."""
    try:
        steps()
    except getattr(builtins, name):
        return True
    except Exception:  # noqa: BLE001 - another one
        return False
    return False


def plain(value: object) -> object:
    """Return a tree with arrays as their kind, dtype and numbers, and scalars with their types."""
    return jax.tree.map(_plain_leaf, value)


def _plain_leaf(leaf: Any) -> object:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return ("keys", jax.random.key_data(leaf).tolist())
    if isinstance(leaf, jax.Array):
        return ("jax", str(leaf.dtype), np.asarray(leaf).tolist(), str(leaf.sharding))
    if isinstance(leaf, np.ndarray):
        return ("numpy", str(leaf.dtype), leaf.tolist())
    return (type(leaf).__name__, leaf)


def run_both(steps: Steps, tmp_path: Path) -> tuple[object, object]:
    """Return what this library gives, and what Orbax gives."""
    found: list[object] = []
    for name, library in LIBRARIES.items():
        folder = tmp_path / name
        folder.mkdir()
        found.append(outcome(lambda lib=library, at=folder: steps(lib, at)))
    return found[0], found[1]
