"""Checkpoints that released versions of Orbax wrote must always load.

They were made by `tests/interop/write_reference.py`, which also recorded what they hold.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import orbit_ckpt as ocp
from tests.cells import cells
from tests.interop.expected import Comparison, checkpoints, comparison_for, variants
from tests.support import GOLDEN, unpack

ARCHIVES = sorted(GOLDEN.glob("orbax-*.tar.gz"))
ENDS = ("orbax-0.2.7.tar.gz", "orbax-0.12.8.tar.gz")
"""Archives of the oldest and the newest release."""

OLD_AND_NEW = cells(ARCHIVES, lambda path: path.name in ENDS)


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that unpacks an archive once."""
    return functools.cache(lambda archive: unpack(archive.name, tmp_path_factory.mktemp("golden")))


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_every_checkpoint_of_a_released_orbax_loads_exactly(unpacked: Any, archive: Path) -> None:
    wrong: list[str] = []
    checked = 0
    with jax.enable_x64(True):
        for name, path, tree in checkpoints(unpacked(archive)):
            found = comparison_for(name).differences(tree, ocp.load(path))
            wrong += [f"{name} {line}" for line in found]
            checked += 1
    assert checked >= 18
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("archive", OLD_AND_NEW, ids=lambda path: path.name)
def test_every_checkpoint_of_a_released_orbax_is_read_lazily_and_saved_again(
    unpacked: Any, archive: Path, tmp_path: Path
) -> None:
    def got(leaf: Any) -> Any:
        return leaf.get() if isinstance(leaf, ocp.LazyArray) else leaf

    wrong: list[str] = []
    with jax.enable_x64(True):
        for number, (name, path, tree) in enumerate(checkpoints(unpacked(archive))):
            lazy = ocp.load(path, lazy=True)
            ocp.save(tmp_path / str(number), lazy)
            found = [
                *comparison_for(name).differences(tree, jax.tree.map(got, lazy)),
                *comparison_for(name).differences(tree, ocp.load(tmp_path / str(number))),
            ]
            wrong += [f"{name} {line}" for line in found]
    assert wrong == []


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_metadata_of_a_released_orbax_has_the_shapes_and_dtypes_that_load_gives(
    unpacked: Any, archive: Path
) -> None:
    directory = unpacked(archive)
    path = directory / variants(directory)["pytree-ocdbt-zarr2"]["path"]
    metadata: Any = ocp.metadata(path).tree
    with jax.enable_x64(True):
        loaded = ocp.load(path)
    for name, leaf in loaded.items():
        if hasattr(leaf, "shape") and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            assert (metadata[name].shape, metadata[name].dtype) == (leaf.shape, leaf.dtype)


def test_comparison_sees_a_changed_bit(unpacked: Any) -> None:
    directory = unpacked(GOLDEN / "orbax-0.12.8.tar.gz")
    tree = variants(directory)["pytree-ocdbt-zarr2"]["tree"]
    with jax.enable_x64(True):
        loaded = ocp.load(directory / "pytree-ocdbt-zarr2")
        loaded["jax_float32"] = -loaded["jax_float32"]
    assert list(Comparison().differences(tree, loaded)) == ["jax_float32: values differ"]


@pytest.mark.slow
@pytest.mark.parametrize("archive", OLD_AND_NEW, ids=lambda path: path.name)
def test_every_checkpoint_of_a_released_orbax_is_verified_and_what_lacks_checksums_is_told(
    unpacked: Any, archive: Path
) -> None:
    for name, path, _ in checkpoints(unpacked(archive)):
        report = ocp.verify(path)
        assert report.is_intact, f"{name}: {report}"
        assert report.leaves
        assert report.unchecked, name  # Orbax writes no manifest
