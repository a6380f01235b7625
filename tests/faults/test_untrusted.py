"""Checkpoints made to mislead: no name, path or link in one reaches a file outside of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from crc32c import crc32c

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.commands import PRUNE, RM
from orbit_ckpt._src.formats.runs import locate_run
from orbit_ckpt._src.storage.inner_path import InnerFiles, check_name, inner_path
from orbit_ckpt._src.storage.layout import MANIFEST, TREE_METADATA, Extent, Value
from orbit_ckpt._src.storage.manifest import FileRecord, Manifest
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.store_path import parse_store_url
from orbit_ckpt._src.storage.value_write import DatabaseWriter
from orbit_ckpt.errors import CheckpointError, UnsafePathError
from tests.support import checkpointer

SECRET = b"canary-0123456789abcdef-canary-0123456789"

NAMES = [
    "../secret",
    "d/../../secret",
    "d/../../outside/../secret",
    "/etc/hostname",
    "..",
    "d//x",
    "d/./x",
    "d/x\0y",
    "s3://bucket/key",
    "file:///etc/hostname",
    "d/" + "x" * 300,
    "d/" * 3000 + "x",
]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return the directory around a checkpoint, which has a file that must never be read."""
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_bytes(SECRET)
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_could_lead_out_is_no_inner_path(tmp_path: Path, name: str) -> None:
    for base in (tmp_path, parse_store_url("s3://bucket/checkpoint")):
        with pytest.raises(UnsafePathError, match="expected one below the checkpoint"):
            inner_path(base, name)
    with pytest.raises(UnsafePathError):
        InnerFiles(tmp_path).status(name)


@pytest.mark.parametrize("name", ["a", "a.b/c/0/0", "...", "..a/b..", "日本/🙂", "a\\b", "a b\n"])
def test_other_names_are_inner_paths(tmp_path: Path, name: str) -> None:
    check_name(name, "here")
    assert inner_path(tmp_path, name) == tmp_path / name
    assert InnerFiles(tmp_path).status(name) is None


def save_raw(path: Path, **options: Any) -> Path:
    """Save an array whose bytes are as many as those of the secret, as they are."""
    tree = {"a": np.zeros(len(SECRET), np.uint8), "b": np.zeros(2000, np.uint8), "s": "text"}
    checkpointer(use_zarr3=False, use_compression=False, **options).save(path, tree)
    (path / MANIFEST).unlink()
    return path


def redirect(checkpoint: Path, file: str) -> None:
    """Make an array of a database be in another file."""
    index = read_index(checkpoint)
    values: dict[str, Value] = {
        key: value
        if isinstance(value, bytes)
        else Extent(os.path.relpath(value.file, checkpoint), value.offset, value.length)
        for key, value in index.items()
    }
    values["a/0"] = Extent(file, 0, len(SECRET))
    (checkpoint / "manifest.ocdbt").unlink()
    writer = DatabaseWriter(checkpoint, data_file_bytes=None)
    writer.refer(values, Manifest())
    writer.close()


def rename_leaf(checkpoint: Path, name: str) -> None:
    """Call a leaf something else in the tree's metadata."""
    file = checkpoint / TREE_METADATA
    document = json.loads(file.read_text())
    for entry in document["tree_metadata"].values():
        if entry["key_metadata"][0]["key"] == "a":
            entry["key_metadata"][0]["key"] = name
    file.write_text(json.dumps(document))


def assert_refused(path: Path, *, match: str = ".") -> None:
    """Assert that nothing outside is read or copied, and that nobody calls it intact."""
    with pytest.raises(CheckpointError, match=match) as error:
        ocp.load(path)
    assert SECRET.decode() not in str(error.value)
    report = ocp.verify(path)
    assert not report.is_intact
    assert SECRET.decode() not in str(report.damage)
    copied = path.with_name("copied")
    with pytest.raises(CheckpointError):
        ocp.copy(path, copied)
    assert not copied.exists()
    assert not list(path.parent.glob("*orbit-*"))


@pytest.mark.parametrize("name", [n for n in NAMES if n != ".."])
def test_a_database_that_names_a_file_outside_is_refused(outside: Path, name: str) -> None:
    path = save_raw(outside / "c")
    redirect(path, name)
    assert_refused(path)
    with pytest.raises(UnsafePathError, match=f"^{path}: the path"):
        ocp.load(path)


@pytest.mark.parametrize("name", ["../other", "x/../../other", "//x", "x\0y", "z" * 300, "../c/a"])
@pytest.mark.parametrize("use_ocdbt", [True, False], ids=["ocdbt", "files"])
def test_a_leaf_whose_name_leads_outside_is_refused(
    outside: Path, name: str, use_ocdbt: bool
) -> None:
    path = save_raw(outside / "c", use_ocdbt=use_ocdbt)
    shutil.copytree(path, outside / "other", dirs_exist_ok=True)
    if not use_ocdbt:
        shutil.copytree(path / "a", outside / "other", dirs_exist_ok=True)
    rename_leaf(path, name)
    assert_refused(path)


def test_a_leaf_in_a_database_may_have_any_name(tmp_path: Path) -> None:
    tree = {"../x": np.arange(9), "/abs": np.arange(9.0), "a//b": 3, "..": 4}
    ocp.save(tmp_path / "c", tree)
    assert set(ocp.load(tmp_path / "c")) == set(tree)
    assert ocp.verify(tmp_path / "c").is_intact


def test_a_manifest_that_records_a_file_outside_is_refused(outside: Path) -> None:
    ocp.save(outside / "c", {"a": 1})
    record = FileRecord.of(len(SECRET), crc32c(SECRET), SECRET[-4:])
    (outside / "c" / MANIFEST).write_bytes(Manifest({"../secret": record}).to_bytes())
    assert not ocp.verify(outside / "c").is_intact


LINKS: list[Any] = []


def linked(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    LINKS.append(pytest.param(make, id=make.__name__))
    return make


def move_out(path: Path) -> Path:
    """Put something beside the checkpoint and a link to it in its place."""
    checkpoint = next(at for at in path.parents if at.name == "c")
    target = checkpoint.with_name(f"moved-{path.name}")
    path.rename(target)
    path.symlink_to(target)
    return path


@linked
def data_file(root: Path) -> Path:
    ocp.save(root / "c", {"a": np.arange(5000.0)})
    return move_out(next((root / "c" / "d").iterdir()))


@linked
def data_directory(root: Path) -> Path:
    ocp.save(root / "c", {"a": np.arange(5000.0)})
    return move_out(root / "c" / "d")


@linked
def chunk_file(root: Path) -> Path:
    checkpointer(use_ocdbt=False, use_zarr3=False).save(root / "c", {"a": np.arange(5000.0)})
    return move_out(root / "c" / "a" / "0")


@linked
def leaf_directory(root: Path) -> Path:
    checkpointer(use_ocdbt=False, use_zarr3=False).save(root / "c", {"a": np.arange(5000.0)})
    return move_out(root / "c" / "a")


@linked
def chunk_directory(root: Path) -> Path:
    checkpointer(use_ocdbt=False, use_zarr3=True).save(root / "c", {"a": np.arange(5000.0)})
    return move_out(root / "c" / "a" / "c")


@linked
def chunk_that_tensorstore_decodes(root: Path) -> Path:
    checkpointer(use_ocdbt=False, use_zarr3=False).save(root / "c", {"a": np.arange(5000.0)})
    document = root / "c" / "a" / ".zarray"
    document.write_text(document.read_text().replace('"order":"C"', '"order":"F"'))
    (root / "c" / MANIFEST).unlink()
    return move_out(root / "c" / "a" / "0")


@linked
def tree_document(root: Path) -> Path:
    ocp.save(root / "c", {"a": np.arange(5000.0)})
    return move_out(root / "c" / TREE_METADATA)


@linked
def strings(root: Path) -> Path:
    ocp.save(root / "c", {"a": "text"})
    return move_out(root / "c" / "_strings.json")


@linked
def array_documents(root: Path) -> Path:
    ocp.save(root / "c", {"a": jnp.arange(5000.0)})
    return move_out(root / "c" / "_sharding")


@linked
def manifest(root: Path) -> Path:
    ocp.save(root / "c", {"a": np.arange(5000.0)})
    return move_out(root / "c" / MANIFEST)


@linked
def database_manifest(root: Path) -> Path:
    ocp.save(root / "c", {"a": np.arange(5000.0)})
    return move_out(root / "c" / "manifest.ocdbt")


@linked
def item(root: Path) -> Path:
    handler = ocp.CompositeCheckpointHandler()
    args = ocp.args.Composite(state=ocp.args.StandardSave({"a": np.arange(5000.0)}))
    ocp.Checkpointer(handler).save(root / "c", args)
    return move_out(root / "c" / "state")


@pytest.mark.parametrize("make", LINKS)
def test_a_link_that_leads_out_of_a_checkpoint_is_refused(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    (tmp_path / "run").mkdir()
    link = make(tmp_path / "run")
    with pytest.raises(UnsafePathError, match="is a link to") as error:
        ocp.load(tmp_path / "run" / "c")
    assert str(link) in str(error.value)
    assert os.readlink(link) in str(error.value)
    assert_refused(tmp_path / "run" / "c", match="outside of the checkpoint")


@pytest.mark.parametrize("use_ocdbt", [True, False], ids=["ocdbt", "files"])
def test_links_that_stay_inside_are_followed(tmp_path: Path, use_ocdbt: bool) -> None:
    value = np.arange(5000.0)
    path = tmp_path / "c"
    checkpointer(use_ocdbt=use_ocdbt).save(path, {"a": value})
    folder = path / ("d" if use_ocdbt else "a")
    file = next(f for f in folder.iterdir() if not f.name.startswith("."))
    file.symlink_to(file.rename(path / "kept"))
    assert np.array_equal(ocp.load(path)["a"], value)
    assert not ocp.verify(path).damage


def test_the_path_that_is_given_may_be_a_link(tmp_path: Path) -> None:
    value = np.arange(5000.0)
    ocp.save(tmp_path / "real" / "c", {"a": value})
    (tmp_path / "link").symlink_to(tmp_path / "real" / "c")
    (tmp_path / "above").symlink_to(tmp_path / "real")
    for path in (tmp_path / "link", tmp_path / "above" / "c"):
        assert np.array_equal(ocp.load(path)["a"], value)
        assert ocp.verify(path).is_intact
        ocp.copy(path, tmp_path / "copied", overwrite=True)


def test_links_of_a_cache_of_hugging_face_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "models--a" / "snapshots" / "0123abc" / "c"
    value = np.arange(5000.0)
    ocp.save(path, {"a": value})
    blobs = tmp_path / "models--a" / "blobs"
    blobs.mkdir()
    for i, file in enumerate([f for f in path.rglob("*") if f.is_file()]):
        blob = file.rename(blobs / str(i))
        file.symlink_to(os.path.relpath(blob, file.parent))
    assert np.array_equal(ocp.load(path)["a"], value)
    assert ocp.verify(path).is_intact
    ocp.copy(path, tmp_path / "copied")
    assert not any(f.is_symlink() for f in (tmp_path / "copied").rglob("*"))


def test_links_to_the_directory_that_they_are_in_end_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c"
    ocp.save(path, {"a": np.arange(5000.0)})
    for name in ("x", "y", "z"):
        (path / name).symlink_to(".")
    report = ocp.verify(path)
    assert [Path(d.file or "").name for d in report.damage] == ["x", "y", "z"]
    with pytest.raises(UnsafePathError, match="which leads to it again"):
        ocp.copy(path, tmp_path / "copied")
    assert not (tmp_path / "copied").exists()
    assert np.array_equal(ocp.load(path)["a"], np.arange(5000.0))


def copy(path: Path) -> None:
    """Copy a checkpoint."""
    ocp.copy(path, path.with_name("copied"))


def restore_items(path: Path) -> None:
    """Restore the items of a checkpoint, which has none."""
    with pytest.raises(ValueError, match="left out"):
        ocp.Checkpointer(ocp.CompositeCheckpointHandler()).restore(path)


def restore_latest(path: Path) -> None:
    """Restore the latest step of a run."""
    with ocp.CheckpointManager(path, item_names=("state",)) as manager:
        assert manager.restore(1)["state"]["a"] == 1


@pytest.mark.parametrize("use", [ocp.load, ocp.metadata, ocp.verify, copy, restore_items])
@pytest.mark.parametrize("parts", [(), (TREE_METADATA,)], ids=["tree", "arrays"])
def test_a_link_to_itself_is_read_or_refused(
    tmp_path: Path, use: Callable[[Path], object], parts: tuple[str, ...]
) -> None:
    path = save_raw(tmp_path / "c", use_ocdbt=False)
    for name in parts:
        (path / name).unlink()
    (path / "loop").symlink_to("loop")
    with contextlib.suppress(CheckpointError):
        use(path)


@pytest.mark.parametrize("use", [ocp.load, ocp.verify, locate_run, restore_latest])
@pytest.mark.parametrize("name", ["loop", "2", "1/loop"])
def test_a_link_to_itself_in_a_run_is_no_step(
    tmp_path: Path, use: Callable[[Path], object], name: str
) -> None:
    with ocp.CheckpointManager(tmp_path / "run", item_names=("state",)) as manager:
        manager.save(1, args=ocp.args.Composite(state=ocp.args.StandardSave({"a": 1})))
    (tmp_path / "run" / name).symlink_to(name.rpartition("/")[2])
    use(tmp_path / "run" / "1" if use is ocp.load else tmp_path / "run")


def test_links_that_multiply_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    ocp.save(path, {"a": 1})
    for i in range(20):
        (path / f"l{i}").mkdir()
        for side in "ab":
            (path / f"l{i}" / side).symlink_to(f"../l{i + 1}")
    (path / "l20").mkdir()
    assert not ocp.verify(path).is_intact
    with pytest.raises(UnsafePathError, match="further links"):
        ocp.copy(path, tmp_path / "copied")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {"a": 1})
    (tmp_path / "c" / TREE_METADATA).unlink()
    os.mkfifo(tmp_path / "c" / TREE_METADATA)
    (tmp_path / "c" / "more").mkdir()
    os.mkfifo(tmp_path / "c" / "more" / "pipe")
    with pytest.raises(CheckpointError):
        ocp.load(tmp_path / "c")
    assert len(ocp.verify(tmp_path / "c").damage) >= 2
    with pytest.raises(UnsafePathError, match="no regular file"):
        ocp.copy(tmp_path / "c", tmp_path / "copied")


def test_hard_links_are_files_like_others(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {"a": np.arange(5000.0)})
    file = next((tmp_path / "c" / "d").iterdir())
    os.link(file, tmp_path / "kept")
    assert ocp.verify(tmp_path / "c").is_intact


@pytest.mark.parametrize(
    "name", ["a\0b", "x" * 300, "y/" * 2500 + "z"], ids=["NUL", "name", "path"]
)
def test_a_path_that_there_cannot_be_is_a_value_error_that_names_it(
    tmp_path: Path, name: str
) -> None:
    path = f"{tmp_path}/{name}"
    uses: list[Callable[[], object]] = [
        lambda: ocp.save(path, {"a": 1}),
        lambda: ocp.load(path),
        lambda: ocp.metadata(path),
        lambda: ocp.verify(path),
        lambda: ocp.CheckpointManager(path),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="The path"):
            use()


def test_the_root_of_all_directories_is_not_saved_to() -> None:
    with pytest.raises(ValueError, match="/ cannot be replaced by a checkpoint"):
        ocp.save("/", {"a": 1})


@pytest.mark.parametrize("slash", ["", "/"])
def test_rm_removes_a_link_and_not_what_it_points_to(tmp_path: Path, slash: str) -> None:
    ocp.save(tmp_path / "real", {"a": 1})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    RM.main([f"{tmp_path / 'link'}{slash}", "--yes"], standalone_mode=False)
    assert not os.path.lexists(tmp_path / "link")
    assert ocp.verify(tmp_path / "real").is_intact


def test_rm_does_not_follow_links_in_a_checkpoint(outside: Path) -> None:
    ocp.save(outside / "c", {"a": 1})
    (outside / "c" / "out").symlink_to(outside / "other")
    (outside / "c" / "loop").symlink_to(".")
    RM.main([str(outside / "c"), "--yes"], standalone_mode=False)
    assert not (outside / "c").exists()
    assert (outside / "other" / "secret").read_bytes() == SECRET


def test_prune_removes_a_link_to_a_step_and_not_the_step(tmp_path: Path) -> None:
    ocp.save(tmp_path / "real", {"a": 1})
    ocp.save(tmp_path / "run" / "2", {"a": 2})
    (tmp_path / "run" / "1").symlink_to(tmp_path / "real")
    (tmp_path / "run" / "loop").symlink_to(".")
    PRUNE.main([str(tmp_path / "run"), "--keep-last", "1", "--yes"], standalone_mode=False)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["2", "loop"]
    assert ocp.verify(tmp_path / "real").is_intact
