"""What the tests of T5X's checkpoints and of TensorFlow's share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

SAMPLES = Path(__file__).parent / "samples" / "t5x"
EXPECTED = json.loads((SAMPLES / "expected.json").read_text())


def named_leaves(tree: object) -> dict[str, Any]:
    """Return leaves by their keys, joined by slashes; None and `{}` are leaves."""

    def is_leaf(node: object) -> bool:
        return not isinstance(node, dict) or not node

    pairs, _ = jax.tree.flatten_with_path(tree, is_leaf=is_leaf)
    return {"/".join(key.key for key in path): leaf for path, leaf in pairs}


def check(found: object, expected: dict[str, Any]) -> None:
    """Compare a tree with a description of its leaves."""
    leaves = named_leaves(found)
    assert sorted(leaves) == sorted(expected)
    for name, value in expected.items():
        leaf = leaves[name]
        if value is None or "empty" in value:
            assert leaf == (value and {})
        else:
            assert (leaf.dtype.name, list(leaf.shape)) == (value["dtype"], value["shape"])
            assert np.asarray(leaf).astype(np.float64).tolist() == value["data"]
