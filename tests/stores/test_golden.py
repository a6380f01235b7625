"""What releases of Orbax have written, copied into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.layout import COMMIT_MARKER
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt.errors import StorageError
from orbit_ckpt.testing.chaos.proxy import Proxy
from tests.formats.zarr_samples import write_array
from tests.interop.expected import checkpoints, comparison_for
from tests.soak import SOAK
from tests.support import unpack

WITH_ODD_NAMES = ("pytree-files-zarr2",)
"""Checkpoints with files of names that a URL has to quote."""


def unpack_release(release: str, directory: Path) -> Path:
    unpack(f"orbax-{release}.tar.gz", directory)
    (root,) = (path.parent for path in directory.rglob("expected.json"))
    return root


def copy_into(url: str, path: Path) -> None:
    for file in path.rglob("*"):
        if file.is_file():
            (resolve_path(url) / file.relative_to(path)).write_bytes(file.read_bytes())
    (resolve_path(url) / COMMIT_MARKER).write_bytes(b"")


def is_small(path: Path) -> bool:
    return sum(file.is_file() for file in path.rglob("*")) < 25


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*there is no _METADATA:UserWarning")
@pytest.mark.parametrize("release", ["0.2.7", "0.12.8"])
@pytest.mark.parametrize("store", ["s3", "memory"], indirect=True)
def test_a_copied_checkpoint_of_orbax_restores(store: str, tmp_path: Path, release: str) -> None:
    wrong: list[str] = []
    for number, (name, path, tree) in enumerate(checkpoints(unpack_release(release, tmp_path))):
        if store.startswith("s3:") and not (SOAK or name in WITH_ODD_NAMES or is_small(path)):
            continue  # a request for each of many files
        url = f"{store}/{number}/{path.name}"
        copy_into(url, path)
        with jax.enable_x64(True):
            loaded = ocp.load(url)
        wrong += [f"{name} {line}" for line in comparison_for(name).differences(tree, loaded)]
    assert wrong == []


def test_the_structure_of_a_checkpoint_without_documents_takes_one_listing(
    s3: str, proxy: Proxy, tmp_path: Path
) -> None:
    for i in range(30):
        write_array(tmp_path / f"w{i}", np.full(2, i))
    copy_into(f"{s3}/1", tmp_path)
    proxy.requests.clear()
    with pytest.warns(UserWarning, match="there is no _METADATA"):
        tree: Any = ocp.metadata(f"{s3}/1").tree
    assert len(tree) == 30
    assert len(proxy.requests) < 3 * 30


def test_a_store_that_fails_is_no_damage(s3: str, proxy: Proxy, tmp_path: Path) -> None:
    found = {name: path for name, path, _ in checkpoints(unpack_release("0.2.7", tmp_path))}
    copy_into(f"{s3}/1", found["single-array"])
    ocp.load(f"{s3}/1")
    proxy.fails = lambda _, path, __: "503" if path.endswith("/0.0") else None
    with pytest.raises(StorageError, match="overloaded"):
        ocp.load(f"{s3}/1")
