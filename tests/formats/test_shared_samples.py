"""All samples beside the repository, where they are: each has the values that its page says.

`../shared/samples` has a directory for every format, with an `expected.json` each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt import t5x
from orbit_ckpt.errors import CorruptionError
from tests.formats.test_flax_msgpack import check as check_flax
from tests.formats.test_t5x import check as check_t5x
from tests.formats.zarr_samples import check_arrays, named_leaves

ROOT = Path(__file__).parents[3] / "shared" / "samples"

pytestmark = pytest.mark.skipif(not ROOT.is_dir(), reason="needs ../shared/samples")


def expected(kind: str) -> dict[str, Any]:
    file = ROOT / kind / "expected.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def samples(kind: str) -> list[Path]:
    """Return everything in a directory but the description."""
    directory = ROOT / kind
    found = directory.iterdir() if directory.is_dir() else ()
    return sorted(path for path in found if path.name != "expected.json")


def ids(path: Path) -> str:
    return path.name


def check_metadata(path: Path, **options: Any) -> None:
    """Compare what `metadata` says of every array with what `load` returns."""
    loaded = named_leaves(ocp.load(path, **options))
    for name, found in named_leaves(ocp.metadata(path, **options).tree).items():
        if isinstance(loaded[name], np.ndarray):
            assert (found.shape, found.dtype) == (loaded[name].shape, loaded[name].dtype), name


@pytest.mark.parametrize("path", samples("t5x"), ids=ids)
def test_samples_of_t5x(path: Path) -> None:
    said, read = expected("t5x")[path.name], 0
    if "translated" in said:  # of TensorFlow
        check_t5x(ocp.load(path), said["translated"])
        own = t5x.TensorFlowFormat(translate=None)
        check_t5x(ocp.load(path, reader=own), said["tf_variables"])
        check_metadata(path)
        return
    if "variables" in said:  # the same, of which upstream kept the index only
        own = t5x.TensorFlowFormat(translate=None)
        found = named_leaves(ocp.metadata(path, reader=own).tree)
        shapes = {name: [leaf.dtype.name, list(leaf.shape)] for name, leaf in found.items()}
        assert shapes == said["variables"]
        return
    if "error" in said:
        words = said["error"]["message"].replace("/samples", str(ROOT))
        with pytest.raises(ValueError) as raised:  # noqa: PT011 - the words are compared
            ocp.load(path)
        assert words in str(raised.value)
    if "remap_False_values" in said:
        legacy = t5x.T5XFormat(allow_legacy=True)
        check_t5x(ocp.load(path, reader=legacy), said["remap_False_values"])
        return
    if "bf16_values_if_bits_are_reinterpreted" in said:
        meant = t5x.T5XFormat(uint16="as_bfloat16")
        (values,) = said["bf16_values_if_bits_are_reinterpreted"].values()
        check_t5x(ocp.load(path, reader=meant), values)
        return
    if "aggregate" in said:  # of Orbax; upstream lost the documents of its arrays
        with pytest.raises(CorruptionError, match="metadata document"):
            ocp.load(path)
        return
    for step, values in said.get("values", {}).items():
        directory = next(path.rglob(f"checkpoint_{step}"), path)
        check_t5x(ocp.load(directory), values)
        check_metadata(directory)
        read += 1
    if "history" in said:
        steps = t5x.all_steps(path)
        assert steps == [h for h in said["history"] if isinstance(h[-1], list)][-1][-1]
        for step in steps:
            assert jax.tree.leaves(ocp.load(path, reader=t5x.T5XFormat(step=step)))
            read += 1
    assert read


@pytest.mark.parametrize("path", samples("eformer"), ids=ids)
def test_samples_of_eformer(path: Path) -> None:
    said = expected("eformer")[path.name]
    leaves = named_leaves(ocp.load(path))
    for prefix, found in said.get("nonarray_leaves", {}).items():
        for name, value in found.items():
            leaf = leaves.pop(f"{prefix}/{name}")
            assert (type(leaf), leaf) == (type(value), value)
    check_arrays(leaves, said.get("arrays") or said["tensors"])
    custom: Any = ocp.metadata(path).custom_metadata
    if "metadata" in said:
        assert custom == said["metadata"]
    else:
        marks = said["json"]["metadata.json"]
        assert {name: custom[name] for name in marks} == marks
    check_metadata(path)


@pytest.mark.parametrize("path", samples("levanter"), ids=ids)
def test_samples_of_levanter(path: Path) -> None:
    said = expected("levanter")[path.name]
    check_arrays(named_leaves(ocp.load(path)), said["arrays"])
    assert ocp.metadata(path).custom_metadata == said["metadata.json"]
    check_metadata(path)


@pytest.mark.parametrize("path", samples("flax_msgpack"), ids=ids)
def test_samples_of_flax(path: Path) -> None:
    check_flax(ocp.load(path), expected("flax_msgpack")[path.name]["value"])
    check_metadata(path)


def test_every_format_of_samples_is_known_here() -> None:
    known = {"t5x", "eformer", "levanter", "flax_msgpack"}
    assert {path.name for path in ROOT.iterdir() if path.is_dir()} <= known
