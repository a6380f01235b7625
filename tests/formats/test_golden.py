"""Checkpoints that released versions of Orbax wrote must always load.

They were made by `tests/interop/write_reference.py`, which also recorded what they hold.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import orbit_ckpt as ocp
from tests.interop.expected import Comparison, checkpoints, comparison_for, variants
from tests.soak import SOAK

GOLDEN = Path(__file__).parent.parent / "golden"


ARCHIVES = sorted(GOLDEN.glob("orbax-*.tar.gz"))
SAVED_AGAIN = ARCHIVES if SOAK else [GOLDEN / f"orbax-{r}.tar.gz" for r in ("0.2.7", "0.12.8")]
"""Archives of the oldest and the newest release in a usual run, which loads those of all."""


@pytest.fixture(scope="session")
def unpack(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that unpacks an archive once."""
    unpacked: dict[Path, Path] = {}

    def directory(archive: Path) -> Path:
        if archive not in unpacked:
            unpacked[archive] = tmp_path_factory.mktemp("golden")
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked[archive], filter="data")
        return unpacked[archive]

    return directory


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_every_checkpoint_of_a_released_orbax_loads_exactly(unpack: Any, archive: Path) -> None:
    wrong: list[str] = []
    checked = 0
    with jax.enable_x64(True):
        for name, path, tree in checkpoints(unpack(archive)):
            found = comparison_for(name).differences(tree, ocp.load(path))
            wrong += [f"{name} {line}" for line in found]
            checked += 1
    assert checked >= 18
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("archive", SAVED_AGAIN, ids=lambda path: path.name)
def test_every_checkpoint_of_a_released_orbax_is_read_lazily_and_saved_again(
    unpack: Any, archive: Path, tmp_path: Path
) -> None:
    def got(leaf: Any) -> Any:
        return leaf.get() if isinstance(leaf, ocp.LazyArray) else leaf

    wrong: list[str] = []
    with jax.enable_x64(True):
        for number, (name, path, tree) in enumerate(checkpoints(unpack(archive))):
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
    unpack: Any, archive: Path
) -> None:
    directory = unpack(archive)
    path = directory / variants(directory)["pytree-ocdbt-zarr2"]["path"]
    metadata: Any = ocp.metadata(path).tree
    with jax.enable_x64(True):
        loaded = ocp.load(path)
    for name, leaf in loaded.items():
        if hasattr(leaf, "shape") and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            assert (metadata[name].shape, metadata[name].dtype) == (leaf.shape, leaf.dtype)


def test_comparison_sees_a_changed_bit(unpack: Any) -> None:
    directory = unpack(GOLDEN / "orbax-0.12.8.tar.gz")
    tree = variants(directory)["pytree-ocdbt-zarr2"]["tree"]
    with jax.enable_x64(True):
        loaded = ocp.load(directory / "pytree-ocdbt-zarr2")
        loaded["jax_float32"] = -loaded["jax_float32"]
    assert list(Comparison().differences(tree, loaded)) == ["jax_float32: values differ"]


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_every_checkpoint_of_a_released_orbax_is_verified_and_what_lacks_checksums_is_told(
    unpack: Any, archive: Path
) -> None:
    for name, path, _ in checkpoints(unpack(archive)):
        report = ocp.verify(path)
        assert report.is_intact, f"{name}: {report}"
        assert report.leaves
        assert report.unchecked, name  # Orbax writes no manifest
