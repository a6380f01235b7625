from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.type_handlers import (
    ArrayHandler,
    SingleReplicaArrayHandler,
    SingleReplicaArrayRestoreArgs,
    create_type_handler_registry,
)
from tests.support import assert_same_tree, put


def test_one_process_restores_as_ever(tmp_path: Path) -> None:
    tree = {
        "w": put(np.arange(16, dtype=np.float32), "y", x=2, y=4),
        "key": jax.random.key(3),
        "n": np.arange(3),
    }
    registry = create_type_handler_registry((jax.Array, SingleReplicaArrayHandler()))
    checkpointer = ocp.Checkpointer(ocp.PyTreeHandler(type_handler_registry=registry))
    checkpointer.save(tmp_path / "x", tree)
    assert_same_tree(checkpointer.restore(tmp_path / "x"), tree)
    args = {
        "w": SingleReplicaArrayRestoreArgs(sharding=tree["w"].sharding, dtype=np.float16),
        "key": SingleReplicaArrayRestoreArgs(),
        "n": ocp.RestoreArgs(),
    }
    found = checkpointer.restore(tmp_path / "x", args=ocp.args.PyTreeRestore(restore_args=args))
    assert_same_tree(found, {**tree, "w": tree["w"].astype(np.float16)})


@pytest.mark.parametrize(
    ("handler", "options", "message"),
    [
        (
            SingleReplicaArrayHandler,
            {"replica_axis_index": -1},
            "replica_axis_index must be at least 0",
        ),
        (
            SingleReplicaArrayHandler,
            {"broadcast_memory_limit_bytes": 0},
            "broadcast_memory_limit_bytes must be at least 1, found 0",
        ),
        (
            SingleReplicaArrayHandler,
            {"broadcast_memory_scaling_factor": 1.5},
            r"broadcast_memory_scaling_factor must be in \(0, 1\], got 1.5",
        ),
        (
            ArrayHandler,
            {"min_slice_bytes_for_replica_parallel": -1},
            "must be at least 0, found -1",
        ),
        (ArrayHandler, {"max_replicas_for_replica_parallel": 0}, "must be at least 1, found 0"),
    ],
)
def test_options_out_of_range_are_refused(handler: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        handler(**options)
