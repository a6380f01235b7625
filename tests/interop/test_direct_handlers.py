"""Call handlers of items directly, without a checkpointer, in all forms that Orbax has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import orbax.checkpoint as orbax
import pytest
from etils import epath

import orbit_ckpt as ocp

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("quiet_orbax")]

TREE = {"a": np.arange(3)}
TARGET = {"a": np.zeros(3, np.int64)}


def wait(coroutine: Any) -> None:
    """Wait until the futures that a handler returns have ended."""
    for future in asyncio.run(coroutine) or ():
        future.result()


def as_int16(library: Any) -> Any:
    return library.SaveArgs(dtype=np.dtype("int16"))


def as_float(library: Any) -> Any:
    return {"a": library.RestoreArgs(dtype=np.float32)}


SAVES: list[tuple[str, Callable[[Any, Any, Any], object]]] = [
    ("PyTree", lambda _, h, p: h.save(p, TREE)),
    ("PyTree", lambda lib, h, p: h.save(p, TREE, {"a": as_int16(lib)})),
    ("PyTree", lambda lib, h, p: h.save(p, item=TREE, save_args={"a": as_int16(lib)})),
    ("PyTree", lambda lib, h, p: h.save(p, args=lib.args.PyTreeSave(TREE))),
    ("PyTree", lambda _, h, p: wait(h.async_save(p, TREE))),
    ("PyTree", lambda lib, h, p: wait(h.async_save(p, args=lib.args.PyTreeSave(TREE)))),
    ("Standard", lambda _, h, p: h.save(p, TREE)),
    ("Standard", lambda lib, h, p: h.save(p, TREE, {"a": as_int16(lib)})),
    ("Standard", lambda lib, h, p: wait(h.async_save(p, args=lib.args.StandardSave(TREE)))),
    ("Json", lambda _, h, p: h.save(p, {"a": 1})),
    ("Json", lambda lib, h, p: h.save(p, None, lib.args.JsonSave({"a": 1}))),
    ("Json", lambda lib, h, p: wait(h.async_save(p, None, lib.args.JsonSave({"a": 1})))),
    ("Array", lambda _, h, p: h.save(p, np.arange(3))),
    ("Array", lambda lib, h, p: h.save(p, np.arange(3), as_int16(lib))),
    ("Array", lambda lib, h, p: wait(h.async_save(p, args=lib.args.ArraySave(np.arange(3))))),
    ("Composite", lambda lib, h, p: h.save(p, lib.args.Composite(s=lib.args.JsonSave(1)))),
]

RESTORES: dict[str, list[Callable[[Any, Any, Any], object]]] = {
    "PyTree": [
        lambda _, h, p: h.restore(p),
        lambda _, h, p: h.restore(p, None, None, None, True, None),
        lambda lib, h, p: h.restore(p, TREE, as_float(lib)),
        lambda lib, h, p: h.restore(
            p,
            item={"b": 0},
            restore_args={"b": lib.RestoreArgs()},
            transforms={"b": lib.Transform(original_key="a")},
            transforms_default_to_original=True,
            legacy_transform_fn=None,
        ),
        lambda lib, h, p: h.restore(p, args=lib.args.PyTreeRestore(restore_args=as_float(lib))),
        lambda _, h, p: h.metadata(p).tree["a"].shape,
    ],
    "Standard": [
        lambda _, h, p: h.restore(p),
        lambda _, h, p: h.restore(p, TARGET),
        lambda _, h, p: h.restore(p, item=TARGET),
        lambda lib, h, p: h.restore(p, args=lib.args.StandardRestore(TARGET)),
    ],
    "Json": [
        lambda _, h, p: h.restore(p),
        lambda lib, h, p: h.restore(p, None, lib.args.JsonRestore()),
    ],
    "Array": [
        lambda _, h, p: h.restore(p),
        lambda lib, h, p: h.restore(p, None, lib.RestoreArgs(dtype=np.float32)),
        lambda lib, h, p: h.restore(p, args=lib.args.ArrayRestore()),
    ],
    "Composite": [
        lambda lib, h, p: dict(h.restore(p, lib.args.Composite(s=lib.args.JsonRestore())).items()),
        lambda lib, h, p: h.restore(p, args=lib.args.Composite(s=lib.args.JsonRestore()))["s"],
    ],
}


@pytest.mark.parametrize(("kind", "save"), SAVES, ids=range(len(SAVES)))
def test_handlers_save_and_restore_as_orbaxs_do(
    kind: str, save: Callable[[Any, Any, Any], object], tmp_path: Any
) -> None:
    found: list[list[object]] = []
    for library in (orbax, ocp):
        path = epath.Path(tmp_path / library.__name__)
        path.mkdir()
        handler = getattr(library, f"{kind}CheckpointHandler")()
        save(library, handler, path)
        handler.finalize(path)
        found.append([restore(library, handler, path) for restore in RESTORES[kind]])
        handler.close()
    theirs, ours = found
    for expected, value in zip(theirs, ours, strict=True):
        np.testing.assert_equal(value, expected)
        assert [x.dtype for x in _arrays(value)] == [x.dtype for x in _arrays(expected)]


def _arrays(value: Any) -> list[np.ndarray]:
    leaves = value.values() if isinstance(value, dict) else [value]
    return [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
