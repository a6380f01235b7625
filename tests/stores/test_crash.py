"""Processes that die while they save into a store.

In memory they die at every change; in the other stores at every third, or at every one under
`nox -s soak`.
"""

from __future__ import annotations

import signal
from typing import Any
from unittest import mock

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.bucket import Bucket
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, IN_PROGRESS
from orbit_ckpt._src.storage.objects import is_half_removed, withdraw
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt.errors import IncompleteCheckpointError, StorageError
from tests.programs import run_script
from tests.soak import rounds

CHANGES = ("begin_write", "delete", "delete_below")


def every_death(store: str) -> range:
    """Return the numbers of the changes to die at, of which the last ones do not happen."""
    return range(1, 60, 1 if store.startswith("memory:") else rounds(3, 1))


def tree(number: int) -> dict[str, object]:
    return {"a": np.full(20_000, number), "n": number, "s": "text"}


def save(url: str, number: int, *, overwrite: bool = False) -> None:
    ocp.save(url, tree(number), overwrite=overwrite)


class _GoneError(StorageError):
    """What every change meets once the process is as good as dead."""


def save_and_die(url: str, nth: int, number: int, *, overwrite: bool) -> bool:
    """Save so that nothing reaches the store from the nth change on; return whether it did."""
    count = 0

    def dying(change: Any) -> Any:
        def call(self: Bucket, *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count >= nth:
                raise _GoneError("dead")
            return change(self, *args, **kwargs)

        return call

    path = resolve_path(url)
    assert isinstance(path, StorePath)
    kind = type(path.bucket)
    with mock.patch.multiple(kind, **{name: dying(getattr(kind, name)) for name in CHANGES}):
        try:
            save(url, number, overwrite=overwrite)
        except StorageError:
            return True
    return count >= nth


def found_at(url: str) -> int | None:
    """Return which tree is there, None if there is no checkpoint; anything else is an error."""
    path = resolve_path(url)
    assert isinstance(path, StorePath)
    names = path.keys_below()
    if COMMIT_MARKER not in names:
        assert IN_PROGRESS in names or not names
        if names:
            with pytest.raises(IncompleteCheckpointError):
                ocp.load(url)
        return None
    loaded = ocp.load(url)
    np.testing.assert_array_equal(loaded["a"], np.full(20_000, loaded["n"]))
    return loaded["n"]


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_dying_at_any_change_never_leaves_half_a_checkpoint(store: str, overwrite: bool) -> None:
    found: list[int | None] = []
    died = True
    for nth in every_death(store):
        url = f"{store}/{overwrite}/{nth}"
        if overwrite:
            save(url, 1)
        died = save_and_die(url, nth, 2, overwrite=overwrite)
        found.append(found_at(url))
        save(url, 3, overwrite=True)
        assert found_at(url) == 3
        if not died:
            break
    assert not died
    assert len(found) > 8 // every_death(store).step
    order = [{1: 0, None: 1, 2: 2}[state] for state in found]
    assert order == sorted(order)


@pytest.mark.slow
def test_dying_while_an_item_is_replaced_never_leaves_half_an_item(store: str) -> None:
    found: list[int | None] = []
    died = True
    for nth in every_death(store):
        step = f"{store}/{nth}"
        items = {name: ocp.args.StandardSave(tree(1)) for name in ("params", "other")}
        ocp.Checkpointer(ocp.CompositeHandler()).save(step, args=ocp.args.Composite(**items))
        died = save_and_die(f"{step}/params", nth, 2, overwrite=True)
        found.append(found_at(f"{step}/params"))
        assert found_at(f"{step}/other") == 1
        save(f"{step}/params", 3, overwrite=True)
        assert found_at(f"{step}/params") == 3
        assert ocp.verify(step).is_intact
        if not died:
            break
    assert not died
    assert set(found) == {1, None, 2}


def test_a_dead_save_does_not_stop_the_next(store: str) -> None:
    assert save_and_die(f"{store}/1", 5, 1, overwrite=False)
    save(f"{store}/1", 2)
    assert found_at(f"{store}/1") == 2


def test_dying_while_what_is_left_is_removed(store: str) -> None:
    assert save_and_die(f"{store}/1", 6, 1, overwrite=False)
    for nth in range(1, 4):
        save_and_die(f"{store}/1", nth, 2, overwrite=False)
        assert found_at(f"{store}/1") is None
    save(f"{store}/1", 3)
    assert found_at(f"{store}/1") == 3


@pytest.mark.parametrize("has_token", [False, True])
def test_a_removal_that_died_is_known_as_one(store: str, has_token: bool) -> None:
    save(f"{store}/1", 1)
    path = resolve_path(f"{store}/1")
    assert isinstance(path, StorePath)
    if has_token:  # its save died when all was done but to delete this
        (path / IN_PROGRESS).write_bytes(b"token")
    assert not is_half_removed(path)
    assert withdraw(path)
    assert is_half_removed(path)
    assert not withdraw(path)


DYING = """
import itertools, os, signal, sys
import numpy as np
import orbit_ckpt as ocp
from orbit_ckpt._src.storage.client_bucket import ClientBucket

url, nth = sys.argv[1], int(sys.argv[2])
begin_write, numbers = ClientBucket.begin_write, itertools.count(1)

def dying(self, key, data):
    number = next(numbers)  # threads write at once
    future = begin_write(self, key, data)
    if number == nth:  # the request may be on its way
        os.kill(os.getpid(), signal.SIGKILL)
    return future

ClientBucket.begin_write = dying
ocp.save(url, {"a": np.full(20_000, 2), "n": 2, "s": "text"})
"""


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2, 4, 7])
def test_a_process_that_is_killed(s3: str, nth: int) -> None:
    url = f"{s3}/1"
    assert run_script(DYING, url, nth).returncode == -signal.SIGKILL
    assert found_at(url) is None
    save(url, 3)
    assert found_at(url) == 3
