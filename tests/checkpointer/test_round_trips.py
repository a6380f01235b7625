"""How often the processes of a save call the coordination service and a store (takes 4 s).

The numbers are those of `docs/explanation/multihost.md`. They do not depend on how fast processes
are: the service of the test makes those wait that ask for what does not exist yet.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt._src.runtime.process import Process
from orbit_ckpt._src.runtime.rendezvous import KeyValueGroup, KeyValueStore
from orbit_ckpt.testing.fakes import MemoryKeyValueStore

LONG_S = 60.0
TREE = {"w": np.arange(1000.0), "b": np.arange(3)}


class CountingStore(KeyValueStore):
    """One process's connection to the service."""

    def __init__(self, shared: MemoryKeyValueStore) -> None:
        self.calls: Counter[str] = Counter()
        self._shared = shared

    @override
    def put(self, key: str, value: bytes) -> None:
        self.calls["set"] += 1
        self._shared.put(key, value)

    @override
    def put_new(self, key: str, value: bytes) -> bool:
        self.calls["set"] += 1
        return self._shared.put_new(key, value)

    @override
    def get(self, key: str, timeout_s: float) -> bytes | None:
        self.calls["get" if timeout_s else "look"] += 1
        return self._shared.get(key, LONG_S if timeout_s else 0)

    @override
    def list(self, folder: str) -> dict[str, bytes]:
        self.calls["list"] += 1
        return self._shared.list(folder)

    @override
    def add(self, key: str, amount: int) -> int:
        self.calls["add"] += 1
        return self._shared.add(key, amount)

    @override
    def delete(self, key: str) -> None:
        self.calls["delete"] += 1
        self._shared.delete(key)


def calls_of(count: int, run: Callable[[ocp.MultiprocessingOptions], object]) -> list[Counter[str]]:
    """Return the calls of every process."""
    shared = MemoryKeyValueStore()
    stores = [CountingStore(shared) for _ in range(count)]
    groups = [KeyValueGroup(store, Process(i, count)) for i, store in enumerate(stores)]
    ready = threading.Barrier(count)

    def main(group: KeyValueGroup) -> None:
        ready.wait(LONG_S)
        run(ocp.MultiprocessingOptions(timeout_secs=LONG_S, group=group))

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(main, groups))
    assert shared.keys == set()
    return [store.calls for store in stores]


def save(path: Path, *, background: bool) -> Callable[[ocp.MultiprocessingOptions], None]:
    def run(options: ocp.MultiprocessingOptions) -> None:
        kind = ocp.AsyncCheckpointer if background else ocp.Checkpointer
        with kind(ocp.PyTreeHandler(), multiprocessing_options=options) as checkpointer:
            checkpointer.save(path, TREE)

    return run


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("count", [2, 4, 32])
def test_calls_of_a_save_do_not_grow_with_the_processes(
    tmp_path: Path, count: int, background: bool
) -> None:
    primary, *others = calls_of(count, save(tmp_path / "a", background=background))
    # of all processes, the last one to arrive says so, and the last one to leave cleans up
    says_so = [calls["set"] - 3 for calls in others] + [primary["set"] - 9]
    cleans_up = [calls["delete"] for calls in others] + [primary["delete"] - 1]
    assert sum(says_so) == sum(cleans_up) == 1
    assert min(says_so + cleans_up) == 0
    for calls in (primary, *others):
        del calls["set"], calls["delete"]
    assert primary == {"get": 1, "look": 1, "list": 1, "add": 2}
    for calls in others:
        assert calls == {"get": 3, "look": 1, "add": 2}
