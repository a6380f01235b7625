"""What programs written for Orbax ask of checkpointers besides saving and restoring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from orbax.checkpoint import checkpoint_manager as of_orbax

import orbit_ckpt as ocp
from orbit_ckpt import checkpoint_manager

TREE = {"w": np.arange(3.0)}


class Described(ocp.PyTreeHandler):
    """A handler that describes the structure of what it saved."""

    def structure(self, directory: Path) -> object:
        return sorted(self.metadata(directory).keys())


def test_structure_is_that_of_the_handler(tmp_path: Path) -> None:
    ocp.Checkpointer(Described()).save(tmp_path / "x", TREE)
    assert ocp.Checkpointer(Described()).structure(tmp_path / "x") == ["w"]
    assert ocp.PyTreeCheckpointer().structure(tmp_path / "x") is None


def test_checkpointers_that_save_in_the_background_are_known() -> None:
    is_async = checkpoint_manager.is_async_checkpointer
    assert is_async(ocp.StandardCheckpointer())
    assert not is_async(ocp.PyTreeCheckpointer())


@pytest.mark.interop
def test_names_of_items_are_those_of_orbax() -> None:
    theirs: Any = of_orbax
    for name in ("DEFAULT_ITEM_NAME", "METRIC_ITEM_NAME", "METADATA_ITEM_NAME"):
        assert getattr(checkpoint_manager, name) == getattr(theirs, name)
    assert list(checkpoint_manager.RESERVED_ITEM_NAMES) == theirs.RESERVED_ITEM_NAMES


def test_step_that_exists_raises_the_error_of_the_module(tmp_path: Path) -> None:
    with checkpoint_manager.CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE)
        manager.wait_until_finished()
        with pytest.raises(checkpoint_manager.StepAlreadyExistsError):
            manager.save(1, TREE, force=True)
