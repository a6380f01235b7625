"""What the tests of formats made of zarr arrays share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from orbit_ckpt._src.tree.keypath import name_path

SAMPLES = Path(__file__).parent / "samples"


def named_leaves(tree: object) -> dict[str, Any]:
    """Return the leaves of a tree by their keys' names, joined by slashes."""
    flat = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda leaf: leaf is None)[0]
    return {"/".join(name_path(path)): leaf for path, leaf in flat}


def check_arrays(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compare arrays with their descriptions."""
    assert sorted(found) == sorted(expected)
    for name, wanted in expected.items():
        array = found[name]
        assert type(array) is np.ndarray
        assert (array.dtype.name, list(array.shape)) == (wanted["dtype"], wanted["shape"]), name
        values = array.tolist() if array.dtype.kind in "biu" else array.astype(np.float64).tolist()
        assert values == wanted["data"], name


def write_array(directory: Path, value: np.ndarray) -> dict[str, object]:
    """Write an array as eFormer and Levanter do, through TensorStore; return its entry."""
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": str(directory)},
        "metadata": {"compressor": {"id": "zstd", "level": 1}},
    }
    store = ts.open(spec, create=True, dtype=value.dtype.name, shape=value.shape).result()
    store.write(value).result()
    return {"shape": list(value.shape), "dtype": value.dtype.name}


def write_json(file: Path, document: object) -> None:
    """Write a JSON document."""
    file.write_text(json.dumps(document))


def mark(directory: Path, step: int, timestamp: str, *, is_temporary: bool = False) -> Path:
    """Write the file that makes a directory a checkpoint."""
    directory.mkdir(parents=True, exist_ok=True)
    fields = {"step": step, "timestamp": timestamp, "is_temporary": is_temporary}
    write_json(directory / "metadata.json", fields)
    return directory
