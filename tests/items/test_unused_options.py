"""Options that Orbax has and that do nothing here."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.items.array import ArrayRestoreArgs
from orbit_ckpt._src.items.proto import ProtoHandler
from orbit_ckpt._src.type_handlers.single_replica import SingleReplicaArrayRestoreArgs
from orbit_ckpt.errors import TreeMismatchError
from orbit_ckpt.type_handlers import ArrayHandler, SingleReplicaArrayHandler
from tests.support import assert_same_tree

OTHER = ocp.MultiprocessingOptions(primary_host=1)


PYTREE: dict[str, object] = {
    "multiprocessing_options": OTHER,
    "enable_pinned_host_transfer": True,
}
MANAGER: dict[str, object] = {
    "single_host_load_and_broadcast": True,
    "temporary_path_class": object,
    "enable_per_process_directory_creation": True,
    "lightweight_initialize": True,
    "num_deletion_threads": 2,
}
NAMES = ocp.StepNameFormat("run")
SET: list[tuple[str, Callable[..., Any], object]] = [
    *((name, ocp.PyTreeHandler, value) for name, value in PYTREE.items()),
    ("multiprocessing_options", ocp.StandardHandler, OTHER),
    ("multiprocessing_options", ocp.JsonHandler, OTHER),
    ("multiprocessing_options", ProtoHandler, OTHER),
    ("composite_options", ocp.CompositeHandler, object()),
    ("primary_host", ArrayHandler, 1),
    ("replica_id", ArrayHandler, 1),
    ("array_metadata_store", ArrayHandler, object()),
    ("dispatcher", ArrayHandler, object()),
    ("dispatcher", SingleReplicaArrayHandler, object()),
    *((name, ocp.CheckpointManagerOptions, value) for name, value in MANAGER.items()),
    ("step_prefix", lambda step_prefix: ocp.CheckpointManagerOptions(
        step_prefix=step_prefix, step_name_format=NAMES), "step"),
    ("step_format_fixed_length", lambda step_format_fixed_length: ocp.CheckpointManagerOptions(
        step_format_fixed_length=step_format_fixed_length, step_name_format=NAMES), 4),
    ("barrier_sync_fn", ocp.AsyncOptions, print),
    ("create_directories_asynchronously", ocp.AsyncOptions, False),
    ("skip_sync_file_validations", ocp.options.FileOptions, True),
    ("aggregate", ocp.SaveArgs, True),
    ("single_replica_sharding", SingleReplicaArrayRestoreArgs, object()),
    ("support_layout", ocp.args.StandardRestore, True),
    ("support_layout", lambda support_layout: ocp.checkpoint_utils.construct_restore_args(
        {}, support_layout=support_layout), True),
    ("item", ocp.args.JsonRestore, {"a": 1}),
    ("item", ArrayRestoreArgs, 1),
    ("checkpoint_metadata_store", lambda **o: ocp.Checkpointer(ocp.JsonHandler(), **o), object()),
    ("checkpoint_metadata_store", lambda **o: ocp.Checkpointer(ocp.JsonHandler(), **o),
        ocp.metadata.metadata_store(enable_write=False)),
    ("temporary_path_class", lambda **o: ocp.AsyncCheckpointer(ocp.JsonHandler(), **o), object),
    ("temporary_path_class", ocp.StandardCheckpointer, object),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "make", "value"), SET, ids=[f"{i} {name}" for i, (name, _, _) in enumerate(SET)]
)
def test_an_option_that_does_nothing_warns_once_and_says_why(
    name: str, make: Callable[..., Any], value: object
) -> None:
    with pytest.warns(
        UserWarning, match=rf"{name}=.* does nothing here: [\w`=()]+ .*\w\.$"
    ) as found:
        make(**{name: value})
    assert len(found) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: ocp.PyTreeHandler(**cast(Any, dict.fromkeys(PYTREE)), handler_impl=None),
        lambda: ocp.PyTreeHandler(multiprocessing_options=ocp.MultiprocessingOptions()),
        lambda: ocp.PyTreeHandler(enable_pinned_host_transfer=False),
        lambda: ocp.StandardHandler(multiprocessing_options=None),
        lambda: ocp.CheckpointManagerOptions(step_prefix="run", step_name_format=NAMES),
        lambda: ocp.SaveArgs(aggregate=False),
        lambda: ArrayHandler(primary_host=None, replica_id=None),
        lambda: ocp.CompositeHandler(composite_options=None),
        lambda: ocp.Checkpointer(
            ocp.JsonHandler(),
            checkpoint_metadata_store=ocp.metadata.metadata_store(
                enable_write=True, blocking_write=True
            ),
        ),
        lambda: ocp.Checkpointer(
            ocp.JsonHandler(), checkpoint_metadata_store=None, temporary_path_class=None
        ),
    ],
    ids=range(10),
)
def test_options_at_their_defaults_are_accepted_without_a_word(make: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ocp.PyTreeHandler(enable_pinned_host_transfer=True),
        lambda: ocp.SaveArgs(aggregate=True),
        lambda: ocp.CheckpointManagerOptions(lightweight_initialize=True),
        lambda: ocp.Checkpointer(ocp.JsonHandler(), temporary_path_class=object),
    ],
    ids=["handler", "args", "options", "checkpointer"],
)
def test_the_warning_names_the_line_that_sets_the_option(make: Callable[[], Any]) -> None:
    with pytest.warns(UserWarning, match="does nothing here") as found:
        make()
    assert [warning.filename for warning in found] == [__file__]


STORED = {"a": np.arange(3), "b": np.ones(2)}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    ocp.PyTreeCheckpointer().save(tmp_path / "x", STORED)
    return tmp_path / "x"


def test_leaves_that_the_checkpoint_lacks_keep_the_targets_values(
    stored: Path, caplog: pytest.LogCaptureFixture
) -> None:
    item = {"a": 0, "z": 7, "new": {"y": np.full(2, 5.0)}}
    with caplog.at_level(logging.WARNING):
        args = ocp.args.PyTreeRestore(item, partial_restore=True)
        found = ocp.PyTreeCheckpointer().restore(stored, args)
    assert_same_tree(found, {"a": STORED["a"], "z": 7, "new": {"y": np.full(2, 5.0)}})
    (record,) = [r for r in caplog.records if "lacks" in r.getMessage()]
    assert "lacks 2 leaves of the target, which keep their values: " in record.getMessage()
    assert "new/y" in record.getMessage()


def test_a_leaf_that_the_checkpoint_lacks_and_that_has_no_value_is_an_error(stored: Path) -> None:
    item = {"a": 0, "z": jax.ShapeDtypeStruct((2,), np.float32)}
    with pytest.raises(TreeMismatchError, match="z"):
        ocp.PyTreeCheckpointer().restore(
            stored, args=ocp.args.PyTreeRestore(item, partial_restore=True)
        )


def test_a_leaf_that_the_checkpoint_lacks_is_an_error_without_partial_restore(
    stored: Path,
) -> None:
    with pytest.raises(TreeMismatchError, match="z"):
        ocp.PyTreeCheckpointer().restore(stored, item={**STORED, "z": 7})


def test_restore_args_of_leaves_that_do_not_exist_are_ignored_in_a_partial_restore(
    stored: Path,
) -> None:
    restore_args = {
        "a": ocp.RestoreArgs(dtype=np.float32),
        "z": ocp.RestoreArgs(dtype=np.int8),
        "q": ocp.RestoreArgs(),
    }
    args = ocp.args.PyTreeRestore({"a": 0, "z": 7}, restore_args, partial_restore=True)
    found = ocp.PyTreeCheckpointer().restore(stored, args)
    assert_same_tree(found, {"a": STORED["a"].astype(np.float32), "z": 7})


def test_restore_of_a_handler_takes_transforms(stored: Path) -> None:
    handler = ocp.PyTreeHandler()
    plain = handler.restore(
        stored,
        item=None,
        restore_args=None,
        transforms=None,
        transforms_default_to_original=True,
        legacy_transform_fn=None,
    )
    assert_same_tree(plain, STORED)
    transforms = {"c": ocp.Transform(original_key="a")}
    found = handler.restore(stored, {"c": 0}, transforms=transforms)
    assert_same_tree(found, {"c": STORED["a"]})
