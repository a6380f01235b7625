"""Leaves of a target that are empty nodes in the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optax
import orbax.checkpoint as orbax
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import TreeMismatchError
from tests.support import assert_same_tree

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("quiet_orbax")]

EMPTY = [None, optax.MaskedNode(), optax.EmptyState(), {}, []]
TARGET = {"a": np.zeros(3, np.int64), "b": np.ones(2)}


@pytest.mark.parametrize("empty", EMPTY, ids=repr)
@pytest.mark.parametrize("kind", ["PyTree", "Standard"])
def test_what_orbax_returns_in_place_of_a_leaf_is_returned_on_request(
    empty: Any, kind: str, tmp_path: Path
) -> None:
    orbax.PyTreeCheckpointer().save(tmp_path / "a", {"a": np.arange(3), "b": empty})

    def restore(library: Any, **options: Any) -> Any:
        handler = getattr(library, f"{kind}CheckpointHandler")()
        args = getattr(library.args, f"{kind}Restore")(TARGET, **options)
        return library.Checkpointer(handler).restore(tmp_path / "a", args=args)

    with pytest.raises(TreeMismatchError, match=r"b: the target has a leaf.*allow_empty=True"):
        restore(ocp)
    assert_same_tree(restore(ocp, allow_empty=True), restore(orbax))


def test_empty_nodes_of_a_manager_are_returned_on_request(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=ocp.args.StandardSave({"a": np.arange(3), "b": None}))
        manager.wait_until_finished()
        found = manager.restore(1, args=ocp.args.StandardRestore(TARGET, allow_empty=True))
    assert_same_tree(found, {"a": np.arange(3), "b": None})
