"""Saves in parts, and deletions, next to Orbax."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt
import orbit_ckpt.v1 as ours
from tests.v1.both import LEAKS, LIBRARIES, plain, run_both

pytestmark = [pytest.mark.interop, LEAKS]


def save_parts(lib: Any, path: Path) -> None:
    lib.partial.save(path, {"a": jnp.arange(4.0), "b": {"x": 1}}, custom_metadata={"k": 1})
    lib.partial.save_async(path, {"b": {"y": np.arange(3)}, "c": "text"}).result()
    lib.partial.save(path, {"d": [1, 2]}, custom_metadata={"z": 1})


@pytest.mark.parametrize(("writer", "reader"), [("ours", "orbax"), ("orbax", "ours")])
def test_finalized_parts_are_one_checkpoint_for_both(
    writer: str, reader: str, tmp_path: Path
) -> None:
    save_parts(LIBRARIES[writer], tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c.partial_save"]
    LIBRARIES[writer].partial.finalize(tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    found = LIBRARIES[reader].load(tmp_path / "c")
    assert plain(found) == plain(LIBRARIES[writer].load(tmp_path / "c"))
    assert LIBRARIES[reader].metadata(tmp_path / "c").custom_metadata == {"k": 1, "z": 1}


def test_finalized_parts_are_verified(tmp_path: Path) -> None:
    save_parts(ours, tmp_path / "c")
    ours.partial.finalize(tmp_path / "c.partial_save")
    assert orbit_ckpt.verify(tmp_path / "c").is_intact


PARTS: dict[str, Callable[[Any, Path], object]] = {
    "load before the end": lambda lib, c: lib.load(c),
    "finalize another": lambda lib, c: lib.partial.finalize(c.with_name("d")),
    "finalize twice": lambda lib, c: (lib.partial.finalize(c), lib.partial.finalize(c)),
    "save after the end": lambda lib, c: (
        lib.partial.finalize(c),
        lib.partial.save(c, {"z": 1}),
    ),
}


@pytest.mark.parametrize("case", PARTS)
def test_errors_of_parts(case: str, tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        save_parts(lib, at / "c")
        return PARTS[case](lib, at / "c")

    mine, theirs = run_both(steps, tmp_path)
    same = {"raises ValueError": ("raises FileNotFoundError", "raises ValueError")}
    assert mine in same.get(str(theirs), (theirs,))


@pytest.mark.parametrize("tree", [{"a": 1}, {"a": {"b": 1}}, {"b": 1}])
def test_part_replaces_no_other(tree: Any, tmp_path: Path) -> None:
    save_parts(ours, tmp_path / "c")
    with pytest.raises(Exception, match="Save every leaf once") as caught:
        ours.partial.save(tmp_path / "c", tree)
    assert type(caught.value).__name__ == "PartialSaveReplacementError"
    ours.partial.finalize(tmp_path / "c")
    assert ours.load(tmp_path / "c")["a"].tolist() == [0, 1, 2, 3]


def save_items(lib: Any, path: Path) -> None:
    lib.save_checkpointables(path, {"a": {"w": 1}, "b": {"z": 2}, "j": {"y": 3}})


DELETIONS: dict[str, Callable[[Any, Path], object]] = {
    "one": lambda lib, c: (
        lib.delete(c, checkpointable_name="b"),
        lib.load_checkpointables(c),
    ),
    "one twice": lambda lib, c: [lib.delete(c, checkpointable_name="b") for _ in range(2)],
    "one twice, may be missing": lambda lib, c: [
        lib.delete(c, checkpointable_name="b", missing_ok=True) for _ in range(2)
    ],
    "the last": lambda lib, c: [lib.delete(c, checkpointable_name=n) for n in ("a", "b", "j")],
    "a reserved one": lambda lib, c: lib.delete(c, checkpointable_name="metrics"),
    "the directory of one": lambda lib, c: lib.delete(c / "a"),
    "no checkpoint": lambda lib, c: lib.delete(c.parent),
    "all": lambda lib, c: (lib.delete_async(c).result(), c.exists()),
    "all twice": lambda lib, c: (lib.delete(c), lib.delete(c)),
    "all twice, may be missing": lambda lib, c: [lib.delete(c, missing_ok=True) for _ in "ab"],
    "an empty directory": lambda lib, c: (
        (c.parent / "e").mkdir(),
        lib.delete(c.parent / "e"),
    ),
    "a link": lambda lib, c: (
        (c.parent / "e").symlink_to(c),
        lib.delete(c.parent / "e"),
    ),
    "a file": lambda lib, c: (
        (c.parent / "e").write_text(""),
        lib.delete(c.parent / "e"),
    ),
    "no bool": lambda lib, c: lib.delete(c, missing_ok=1),
    "moved away": lambda lib, c: lib.Context().__enter__() and _to_trash(lib, c),
}


def _to_trash(lib: Any, path: Path) -> object:
    context = lib.Context()
    context.deletion.gcs_deletion_options.todelete_full_path = "trash"
    with context:
        return lib.delete(path)


@pytest.mark.parametrize("case", sorted(DELETIONS.keys() - {"moved away"}))
def test_deletion(case: str, tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        save_items(lib, at / "c")
        return DELETIONS[case](lib, at / "c")

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


def test_deleted_checkpoints_are_not_moved(tmp_path: Path) -> None:
    save_items(ours, tmp_path / "c")
    with pytest.raises(NotImplementedError, match="todelete_full_path"):
        _to_trash(ours, tmp_path / "c")
    assert (tmp_path / "c").is_dir()


def test_checkpoint_stays_intact_when_one_is_deleted(tmp_path: Path) -> None:
    save_items(ours, tmp_path / "c")
    ours.delete(tmp_path / "c", checkpointable_name="b")
    assert orbit_ckpt.verify(tmp_path / "c").is_intact
    assert LIBRARIES["orbax"].load_checkpointables(tmp_path / "c").keys() == {"a", "j"}


def unfinished_deletion(path: Path) -> None:
    """Leave what a deletion of `b` leaves that dies after its record is written."""
    document = json.loads((path / "_CHECKPOINT_METADATA").read_text())
    kept = {k: v for k, v in document["item_handlers"].items() if k != "b"}
    record = {
        "operation_id": "0" * 32,
        "checkpointable_name": "b",
        "destination": None,
        "original_metadata": document,
        "updated_metadata": {**document, "item_handlers": kept},
    }
    (path / "_CHECKPOINT_DELETION").write_text(json.dumps(record))


UNFINISHED: dict[str, Callable[[Any, Path], object]] = {
    "load all": lambda lib, c: lib.load_checkpointables(c),
    "load it": lambda lib, c: lib.load_checkpointables(c, {"b": None}),
    "load it as the state": lambda lib, c: lib.load(c, checkpointable_name="b"),
    "load another": lambda lib, c: lib.load(c, checkpointable_name="a"),
    "describe": lambda lib, c: lib.checkpointables_metadata(c).metadata,
    "delete it": lambda lib, c: (
        lib.delete(c, checkpointable_name="b"),
        lib.load_checkpointables(c),
        sorted(p.name for p in c.iterdir() if p.is_dir()),
    ),
    "delete another": lambda lib, c: lib.delete(c, checkpointable_name="a"),
    "delete all": lambda lib, c: (lib.delete(c), c.exists()),
}


@pytest.mark.parametrize("case", UNFINISHED)
def test_unfinished_deletion(case: str, tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        save_items(lib, at / "c")
        unfinished_deletion(at / "c")
        return UNFINISHED[case](lib, at / "c")

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


def test_record_of_other_metadata_is_refused(tmp_path: Path) -> None:
    save_items(ours, tmp_path / "c")
    unfinished_deletion(tmp_path / "c")
    file = tmp_path / "c" / "_CHECKPOINT_DELETION"
    file.write_text(file.read_text().replace('"a"', '"x"'))
    with pytest.raises(ours.errors.DeletionRecoveryError, match="other metadata"):
        ours.load(tmp_path / "c", checkpointable_name="a")
