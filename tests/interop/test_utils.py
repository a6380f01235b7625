"""Helpers of `utils`, against Orbax's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from orbax.checkpoint import utils as orbax

import orbit_ckpt as ocp
from orbit_ckpt import utils

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("quiet_orbax")]


@pytest.mark.parametrize("leaf", ["PLACEHOLDER://a.b", "AGGREGATED://c", "a", 3, None, "x://"])
def test_placeholders_are_those_of_orbax(leaf: Any) -> None:
    is_one = orbax.leaf_is_placeholder(leaf)
    assert utils.leaf_is_placeholder(leaf) is is_one
    trees = ({"a": leaf}, {"a": "PLACEHOLDER://a", "b": leaf}, [])
    for tree in trees:
        assert utils.all_leaves_are_placeholders(tree) is orbax.all_leaves_are_placeholders(tree)
    if is_one:
        name = utils.name_from_leaf_placeholder(leaf)
        assert name == orbax.name_from_leaf_placeholder(leaf)
        assert utils.leaf_placeholder(name) == orbax.leaf_placeholder(name)
    else:
        with pytest.raises(ValueError, match="is not a placeholder"):
            utils.name_from_leaf_placeholder(leaf)


def test_structure_is_inferred_from_the_names_of_folders_as_by_orbax(tmp_path: Path) -> None:
    import orbax.checkpoint as library  # noqa: PLC0415 - the package of `orbax`

    tree = {"params": {"dense": {"w": np.ones(2)}, "b": np.ones(1)}, "step": np.ones(3)}
    library.Checkpointer(library.PyTreeCheckpointHandler(use_ocdbt=False)).save(
        tmp_path / "theirs", tree
    )
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt"):  # Orbax takes them for arrays
        (tmp_path / "theirs" / name).unlink()
    expected = orbax.pytree_structure(tmp_path / "theirs")
    assert utils.pytree_structure(tmp_path / "theirs") == expected
    ocp.Checkpointer(ocp.PyTreeHandler(use_ocdbt=False)).save(tmp_path / "ours", tree)
    assert utils.pytree_structure(tmp_path / "ours") == expected


@pytest.mark.parametrize(
    "value", [1, 1.5, True, np.float32(1), np.bool_(True), np.ones(()), jnp.ones(()), "text", 1j]
)
def test_scalars_are_those_of_orbax(value: object) -> None:
    assert utils.is_scalar(value) is orbax.is_scalar(value)


@pytest.mark.parametrize("path", ["gs://bucket/a", "/gs/a", "s3://bucket/a"])
def test_paths_of_googles_store_are_those_of_orbax(path: str) -> None:
    found: Any = epath.Path(path)
    assert utils.is_gcs_path(found) is orbax.is_gcs_path(found)
    assert utils.is_gcs_path(path) is path.startswith("gs://")


def test_time_between_saves_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    durations: list[tuple[str, float]] = []

    def listen(event: str, seconds: float, **_: object) -> None:
        durations.append((event, seconds))

    monkeypatch.setattr(jax.monitoring, "record_event_duration_secs", listen)
    for module in (utils, orbax):
        module.record_saved_duration(1000.0)
        module.record_saved_duration(1030.0)
    assert durations[1] == durations[3]
    assert durations[1][1] == 30


def test_replicated_array_of_one_process_becomes_global_as_by_orbax() -> None:
    local = jax.pmap(lambda x: x)(jnp.ones((len(jax.devices()), 3)))
    ours, theirs = (
        module.fully_replicated_host_local_array_to_global_array(local) for module in (utils, orbax)
    )
    assert ours.sharding.is_equivalent_to(theirs.sharding, 1)
    np.testing.assert_array_equal(ours, theirs)
