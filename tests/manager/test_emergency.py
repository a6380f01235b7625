"""Names of what exists only on Google's clusters."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt import pathways
from orbit_ckpt.errors import CheckpointError
from orbit_ckpt.experimental import emergency

FOLDER = "experimental.emergency"
OPTIONS = [
    (f"{FOLDER}.checkpoint_manager", "LocalCheckpointOptions"),
    (f"{FOLDER}.checkpoint_manager", "PersistentCheckpointOptions"),
    (f"{FOLDER}.checkpoint_manager", "MultiprocessingOptions"),
    (f"{FOLDER}.checkpoint_manager", "CheckpointManagerOptions"),
    (f"{FOLDER}.p2p.options", "LocalCheckpointOptions"),
    (f"{FOLDER}.p2p.options", "PersistentCheckpointOptions"),
    (f"{FOLDER}.multi_tier_checkpointing.replicator_checkpoint_manager",
     "ReplicatorCheckpointManagerOptions"),
]  # fmt: skip


@pytest.mark.interop
@pytest.mark.parametrize(("module", "name"), OPTIONS, ids=lambda value: value.rpartition(".")[2])
def test_options_have_the_defaults_of_orbax(module: str, name: str) -> None:
    ours = getattr(importlib.import_module(f"orbit_ckpt.{module}"), name)()
    theirs = getattr(pytest.importorskip(f"orbax.checkpoint.{module}"), name)()
    for field in dataclasses.fields(theirs):
        value = getattr(theirs, field.name)
        if isinstance(value, int | None):
            assert getattr(ours, field.name) == value
        assert hasattr(ours, field.name)


MAKE: list[Callable[..., object]] = [
    emergency.checkpoint_manager.CheckpointManager,
    emergency.p2p.checkpoint_manager.CheckpointManager,
    emergency.replicator_checkpoint_manager.ReplicatorCheckpointManager,
    emergency.multi_tier_checkpointing.initialization.initialize_multi_tier_checkpointing,
]


@pytest.mark.parametrize("make", MAKE)
def test_manager_is_refused_with_what_serves_instead(make: Callable[..., object]) -> None:
    with pytest.raises(NotImplementedError, match=r"not supported.*Use two managers") as caught:
        make("local", "persistent", global_mesh=None)
    assert isinstance(caught.value, CheckpointError)


def test_what_serves_instead_works(tmp_path: Path) -> None:
    alone = ocp.MultiprocessingOptions(primary_host=None)
    local = ocp.CheckpointManagerOptions(
        save_interval_steps=2, max_to_keep=2, multiprocessing_options=alone
    )
    persistent = ocp.CheckpointManagerOptions(save_interval_steps=5)
    with (
        ocp.CheckpointManager(tmp_path / "local", options=local) as often,
        ocp.CheckpointManager(tmp_path / "persistent", options=persistent) as rarely,
    ):
        for step in range(10):
            for run in (often, rarely):
                run.save(step, {"w": np.full(2, step)})
    steps = [ocp.CheckpointManager(tmp_path / n).all_steps() for n in ("local", "persistent")]
    assert steps == [[6, 8], [0, 5]]


def test_registration_for_pathways_is_refused() -> None:
    impl = pathways.CheckpointingImpl.from_options(use_colocated_python=True)
    assert impl is pathways.CheckpointingImpl.COLOCATED_PYTHON
    with pytest.raises(NotImplementedError, match="Leave the call out"):
        pathways.register_type_handlers(checkpointing_impl=impl)


def test_modules_are_attributes_of_their_package() -> None:
    module: Any = importlib.import_module("orbit_ckpt.experimental.emergency.p2p.options")
    assert ocp.experimental.emergency.p2p.options is module
