"""Save and load with the options of Orbax's type handlers, in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest
from etils import epath

import orbit_ckpt as ocp
from orbit_ckpt.errors import CorruptionError
from tests.support import assert_same_tree, put

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("quiet_orbax")]

BOTH = (orbax, ocp)
ZARR2_FILES = {"use_ocdbt": False, "use_zarr3": False}
KEY = {"metadata_key": "mk"}


def tree() -> dict[str, Any]:
    """Return leaves of all types."""
    return {
        "number": 3,
        "host": np.arange(5.0),
        "device": jnp.arange(6.0),
        "replicated": put(np.arange(8.0), x=8),
        "split": put(np.arange(8.0), "x", x=8),
        "text": "hello",
    }


def handler_of(library: Any, options: Mapping[str, Any], **layout: Any) -> Any:
    """Return a handler of trees with options of its type handlers, by their names."""
    types = library.type_handlers
    kinds = {
        int: types.ScalarHandler,
        np.ndarray: types.NumpyHandler,
        jax.Array: types.ArrayHandler,
        str: types.StringHandler,
    }
    made = [(kind, make(**options.get(make.__name__, {}))) for kind, make in kinds.items()]
    registry = types.create_type_handler_registry(*made)
    return library.PyTreeCheckpointHandler(type_handler_registry=registry, **layout)


def save(library: Any, path: Path, options: Mapping[str, Any], **layout: Any) -> None:
    """Save the tree with a library."""
    handler = handler_of(library, options, **layout)
    library.Checkpointer(handler).save(path, library.args.PyTreeSave(tree()))


def assert_restored(library: Any, path: Path, options: Mapping[str, Any], **layout: Any) -> None:
    """Assert that a library restores the tree."""
    args = library.checkpoint_utils.construct_restore_args(tree())
    checkpointer = library.Checkpointer(handler_of(library, options, **layout))
    found = checkpointer.restore(path, args=library.args.PyTreeRestore(restore_args=args))
    for name, value in tree().items():
        assert np.array_equal(np.asarray(found[name]), np.asarray(value)), name


def files_below(path: Path) -> set[str]:
    """Return the names of all files, without those of data files."""
    names = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    return {name for name in names if "d/" not in name}


@pytest.mark.parametrize(
    ("options", "layout", "written"),
    [
        pytest.param(
            {"ScalarHandler": KEY, "NumpyHandler": KEY, "ArrayHandler": KEY},
            ZARR2_FILES,
            {"number/mk", "host/mk", "device/mk", "split/mk"},
            id="metadata_key",
        ),
        pytest.param(
            {
                "ScalarHandler": {"ocdbt_process_id": "host"},
                "NumpyHandler": {"ocdbt_process_id": "host"},
            },
            {},
            {"ocdbt.process_host/manifest.ocdbt", "ocdbt.process_0/manifest.ocdbt"},
            id="ocdbt_process_id",
        ),
        pytest.param(
            {"ArrayHandler": {"enable_replica_parallel_separate_folder": True}},
            {},
            {"ocdbt.process_replica_0/manifest.ocdbt", "ocdbt.process_0/manifest.ocdbt"},
            id="separate_folder",
        ),
        pytest.param(
            {"StringHandler": {"filename": "texts.json"}}, {}, {"texts.json"}, id="filename"
        ),
        pytest.param(
            {"NumpyHandler": {"deepcopy_host_arrays": False}}, {}, {"_METADATA"}, id="no_copy"
        ),
        pytest.param(
            {"ArrayHandler": {"enable_write_sharding_file": False}},
            {},
            {"_METADATA"},
            id="no_sharding_file",
        ),
    ],
)
def test_each_library_restores_what_both_saved(
    tmp_path: Path, options: Mapping[str, Any], layout: Mapping[str, Any], written: set[str]
) -> None:
    for writer in BOTH:
        path = tmp_path / writer.__name__
        save(writer, path, options, **layout)
        assert written <= files_below(path)
        has_shardings = "enable_write_sharding_file" not in str(options)
        assert ("_sharding" in files_below(path)) == has_shardings
        for reader in BOTH:
            assert_restored(reader, path, options, **layout)


def test_arrays_of_another_metadata_key_are_intact_and_read_without_it(tmp_path: Path) -> None:
    options = {"ScalarHandler": KEY, "NumpyHandler": KEY, "ArrayHandler": KEY}
    for number, use_ocdbt in enumerate((False, True)):
        path = tmp_path / str(number)
        save(ocp, path, options, use_ocdbt=use_ocdbt, use_zarr3=False)
        assert ocp.verify(path).is_intact
        assert_restored(ocp, path, {})


def test_a_lost_metadata_document_of_another_name_is_damage(tmp_path: Path) -> None:
    options = {"NumpyHandler": KEY}
    save(ocp, tmp_path / "a", options, **ZARR2_FILES)
    (tmp_path / "a" / "host" / "mk").unlink()
    assert not ocp.verify(tmp_path / "a").is_intact
    with pytest.raises(CorruptionError, match="host"):
        ocp.load(tmp_path / "a")


def test_databases_of_several_ids_are_checked(tmp_path: Path) -> None:
    save(ocp, tmp_path / "a", {"NumpyHandler": {"ocdbt_process_id": "host"}})
    assert ocp.verify(tmp_path / "a").is_intact
    (data,) = (tmp_path / "a" / "ocdbt.process_host" / "d").iterdir()
    data.write_bytes(data.read_bytes()[:-1] + b"\x99")
    assert not ocp.verify(tmp_path / "a").is_intact


def test_verify_finds_strings_in_the_file_of_their_handler(tmp_path: Path) -> None:
    save(ocp, tmp_path / "a", {"StringHandler": {"filename": "texts.json"}})
    registry = ocp.type_handlers.GLOBAL_TYPE_HANDLER_REGISTRY
    with registry.scope():
        registry.add(str, ocp.type_handlers.StringHandler("texts.json"), override=True)
        assert ocp.verify(tmp_path / "a").is_intact
    with pytest.raises(CorruptionError, match=r"StringHandler\(filename"):
        ocp.load(tmp_path / "a")


class Marked(ocp.type_handlers.ArrayHandler):
    """Records JSON of every array."""

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        for info in infos:
            info.ext_metadata = {"unit": info.name}
        return await super().serialize(values, infos, args)


def test_orbax_reads_the_json_of_leaves(tmp_path: Path) -> None:
    registry = ocp.type_handlers.create_type_handler_registry((jax.Array, Marked()))
    handler = ocp.PyTreeHandler(type_handler_registry=registry)
    value = {"a": jnp.arange(4), "key": jax.random.key(0)}
    ocp.Checkpointer(handler).save(tmp_path / "a", value)
    store = orbax.type_handlers.get_type_handler(jax.Array)._array_metadata_store  # type: ignore[attr-defined]
    records = asyncio.run(store.read(epath.Path(tmp_path / "a"), process_index=0))
    found = {record.param_name: record.ext_metadata for record in records}
    assert found == {"a": {"unit": "a"}, "key": {"unit": "key", "random_key_impl": "threefry2x32"}}
    restored = orbax.PyTreeCheckpointer().restore(tmp_path / "a")
    assert jax.random.key_data(restored["key"]).tolist() == [0, 0]


def test_orbaxs_validator_accepts_our_records(tmp_path: Path) -> None:
    base: Any = orbax.PyTreeCheckpointHandler()
    validator = base._handler_impl._array_metadata_validator
    handler = ocp.PyTreeHandler(array_metadata_validator=validator)
    ocp.Checkpointer(handler).save(tmp_path / "a", {"a": jnp.arange(4)})
    assert_same_tree(ocp.load(tmp_path / "a"), {"a": jnp.arange(4)})


def test_orbaxs_handler_saves_and_restores_for_ours(tmp_path: Path) -> None:
    impl = orbax.BasePyTreeCheckpointHandler()
    checkpointer = ocp.Checkpointer(ocp.PyTreeHandler(handler_impl=impl))
    checkpointer.save(tmp_path / "a", {"a": np.arange(4)})
    assert "ocdbt.process_0/manifest.ocdbt" in files_below(tmp_path / "a")  # as Orbax writes
    assert_same_tree(checkpointer.restore(tmp_path / "a"), {"a": np.arange(4)})
    transforms = {"b": ocp.Transform(original_key="a")}
    found = checkpointer.restore(tmp_path / "a", item={"b": 0}, transforms=transforms)
    assert_same_tree(found, {"b": np.arange(4)})
    assert ocp.verify(tmp_path / "a").is_intact
