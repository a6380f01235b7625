"""Checkpoints in object stores that are read lazily or compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.fingerprint import checkpoint_fingerprint
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt.errors import CheckpointNotFoundError, StorageError
from orbit_ckpt.testing.chaos.proxy import Proxy


def values() -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(0).random((600, 100)), "b": np.arange(5)}


def test_lazy_arrays_are_read_when_they_are_asked_for(s3: str, proxy: Proxy) -> None:
    ocp.save(f"{s3}/1", values())
    proxy.requests.clear()
    lazy = ocp.load(f"{s3}/1", lazy=True)
    opened = len(proxy.requests)
    np.testing.assert_array_equal(np.asarray(lazy["w"][10:20]), values()["w"][10:20])
    assert len(proxy.requests) > opened
    np.testing.assert_array_equal(np.asarray(lazy["b"]), values()["b"])


def test_lazy_arrays_of_a_checkpoint_that_was_replaced_are_refused(store: str) -> None:
    def save(tree: object, *, force: bool = False) -> None:
        # a tree of the same shapes has the same documents, and so has an item's manifest
        args = ocp.args.Composite(state=ocp.args.StandardSave(tree))
        ocp.Checkpointer(ocp.CompositeHandler()).save(f"{store}/1", args, force=force)

    save(values())
    before = (
        checkpoint_fingerprint(resolve_path(f"{store}/1")),
        checkpoint_fingerprint(resolve_path(f"{store}/1/state")),
    )
    lazy = ocp.load(f"{store}/1", lazy=True)
    other = {name: value + 1 for name, value in values().items()}
    save(other, force=True)
    assert checkpoint_fingerprint(resolve_path(f"{store}/1")) != before[0]
    assert checkpoint_fingerprint(resolve_path(f"{store}/1/state")) != before[1]
    for name in other:
        with pytest.raises(CheckpointNotFoundError, match="replaced by another one"):
            np.asarray(lazy[name])


def test_lazy_arrays_tell_of_a_store_that_cannot_be_reached(s3: str, proxy: Proxy) -> None:
    ocp.save(f"{s3}/1", values())
    lazy = ocp.load(f"{s3}/1", lazy=True)
    proxy.fails = lambda *_: "503"
    with pytest.raises(StorageError, match="overloaded"):
        np.asarray(lazy["w"])


@pytest.mark.parametrize("use_ocdbt", [True, False])
def test_lazy_arrays_are_saved_again(store: str, use_ocdbt: bool) -> None:
    handler = ocp.PyTreeHandler(use_ocdbt=use_ocdbt)
    ocp.Checkpointer(handler).save(f"{store}/1", values())
    lazy = ocp.load(f"{store}/1", lazy=True)
    ocp.save(f"{store}/2", {"again": lazy["w"]})
    np.testing.assert_array_equal(ocp.load(f"{store}/2")["again"], values()["w"])


def test_checkpoints_of_a_store_are_compared(store: str) -> None:
    ocp.save(f"{store}/1", values())
    ocp.save(f"{store}/2", values())
    changed: dict[str, Any] = values()
    changed["w"][7, 7] += 1
    ocp.save(f"{store}/3", changed)
    assert ocp.diff(f"{store}/1", f"{store}/2", values=True).is_same
    assert "w" in str(ocp.diff(f"{store}/1", f"{store}/3", values=True))


@pytest.mark.parametrize("compressed", [True, False])
def test_arrays_that_do_not_fit_the_budget_are_compared(
    store: str, compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbit_ckpt._src.storage.value_read.OBJECT_ALONE_BYTES", 100_000)
    handler = ocp.PyTreeHandler(use_compression=compressed)
    changed: dict[str, Any] = values()
    changed["w"][599, 99] += 1
    ocp.Checkpointer(handler).save(f"{store}/1", values())
    ocp.Checkpointer(handler).save(f"{store}/2", changed)
    found = ocp.diff(f"{store}/1", f"{store}/2", values=True, max_bytes=50_000)
    assert "1 of 60000" in str(found).replace(",", "")


def test_a_plan_of_a_directory_per_array_reads_no_array(s3: str, proxy: Proxy) -> None:
    ocp.Checkpointer(ocp.PyTreeHandler(use_ocdbt=False)).save(f"{s3}/1", values())
    proxy.requests.clear()
    ocp.plan(f"{s3}/1")
    assert not [path for _, path in proxy.requests if "/c/" in path], proxy.requests
