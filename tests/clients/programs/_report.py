"""What the programs share: their command line and the description of what they restore."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

MAX_VALUES = 16
"""Longer arrays are described by a digest of their bytes."""


def describe(tree: object) -> dict[str, Any]:
    """Return types, values, dtypes and structure of a tree as JSON."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    named = {jax.tree_util.keystr(path): _describe_leaf(leaf) for path, leaf in leaves}
    return {"structure": re.sub(r" at 0x[0-9a-f]+", "", str(structure)), "leaves": named}


def _describe_leaf(leaf: object) -> list[object]:
    kind = type(leaf)
    name = "jax.Array" if isinstance(leaf, jax.Array) else f"{kind.__module__}.{kind.__name__}"
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return [name, str(leaf.dtype), [*leaf.shape], str(leaf.sharding)]
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return [name, repr(leaf)]
    sharding = [str(leaf.sharding)] if isinstance(leaf, jax.Array) else []
    dtype = str(leaf.dtype)
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    few = array.size <= MAX_VALUES
    values = str(array.tolist()) if few else hashlib.sha256(array.tobytes()).hexdigest()
    return [name, dtype, [*array.shape], values, *sharding]


def main(save: Callable[[Path], object], restore: Callable[[Path], object]) -> None:
    """Run the commands of the command line: `save DIRECTORY` and `restore DIRECTORY`, repeated.

    Prints a line for each: what the function returns, as JSON.
    """
    import orbax.checkpoint as ocp  # noqa: PLC0415 - the programs say how it is imported

    library = ocp.CheckpointManager.__module__.partition(".")[0]
    functions = {"save": save, "restore": restore}
    for command, directory in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        result = functions[command](Path(directory))
        print(json.dumps({"library": library, "result": result}), flush=True)
