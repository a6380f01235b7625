"""Which format a path is of, and formats of plug-ins."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import serialization

import orbit_ckpt as ocp
from orbit_ckpt import args, formats
from orbit_ckpt._src.formats.base import BUILT_IN, built_in_formats
from orbit_ckpt.errors import (
    CheckpointNotFoundError,
    FormatError,
    IncompleteCheckpointError,
    PluginConflictError,
)
from tests.formats.zarr_samples import SAMPLES

NPY = """
import numpy as np
from orbit_ckpt.formats import Extent, RawArray, stored_tree

class NpyFormat:
    name = "npy"
    extra = "orbit-npy"

    def sniff(self, path):
        return None if path.suffix == ".npy" else "its name does not end in .npy"

    def open(self, path):
        array = np.load(path, mmap_mode="r")
        extent = Extent(str(path), array.offset, array.nbytes)
        raw = RawArray(array.shape, array.dtype, extent)
        return stored_tree(path, {"array": raw}, files=[path])
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Install packages with one format each, as pip would leave them."""

    def install_package(name: str, source: str) -> None:
        packages = tmp_path / "packages"
        info = packages / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (packages / f"{name}.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[orbit_ckpt.formats]\n{name} = {name}:NpyFormat\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(packages)

    return install_package


def test_a_format_of_a_plugin_is_read_like_any_other(
    install: Callable[[str, str], None], tmp_path: Path
) -> None:
    install("npy_format", NPY)
    value = np.arange(12, dtype=np.int16).reshape(3, 4)
    np.save(tmp_path / "x.npy", value)
    assert np.array_equal(ocp.load(tmp_path / "x.npy")["array"], value)
    assert np.array_equal(ocp.load(tmp_path / "x.npy", lazy=True)["array"][1:, ::2], value[1:, ::2])
    assert ocp.detect_format(tmp_path / "x.npy") == "npy"
    with pytest.raises(CheckpointNotFoundError, match=r"npy \(needs `pip install 'orbit-npy'`\): "):
        ocp.load(tmp_path)


WRITER = """
    writes_as = "npy"

    def write(self, request):
        np.save(request.path, np.asarray(request.tree["w"]))
"""


def test_a_format_of_a_plugin_that_can_write_is_one_to_convert_to(
    install: Callable[[str, str], None], tmp_path: Path
) -> None:
    install("npy_writer", NPY + WRITER)
    value = np.arange(6, dtype=np.float32)
    ocp.save(tmp_path / "saved", {"w": value})
    ocp.convert(tmp_path / "saved", tmp_path / "w.npy", to="npy")
    assert np.array_equal(ocp.load(tmp_path / "w.npy")["array"], value)
    with pytest.raises(ValueError, match="'npy'"):
        ocp.convert(tmp_path / "saved", tmp_path / "w.h5", to="hdf5")


def test_a_plugin_that_fails_is_a_warning_and_the_others_go_on(
    install: Callable[[str, str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install("broken_format", "raise RuntimeError('broken')")
    (tmp_path / "x.msgpack").write_bytes(serialization.msgpack_serialize({"a": 1}))
    with caplog.at_level(logging.WARNING):
        assert ocp.load(tmp_path / "x.msgpack") == {"a": 1}
        with pytest.raises(CheckpointNotFoundError):
            ocp.load(tmp_path / "packages")
    assert (
        "'broken_format' of group orbit_ckpt.formats, package broken_format cannot be used: "
        "RuntimeError: broken" in caplog.text
    )


@pytest.mark.parametrize("error", ["KeyError('shape')", "OSError('no header')"])
def test_a_plugin_whose_sniff_raises_is_a_warning_and_the_others_are_asked(
    install: Callable[[str, str], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    error: str,
) -> None:
    refusal = 'return None if path.suffix == ".npy" else "its name does not end in .npy"'
    assert refusal in NPY
    install("a_failing_format", NPY.replace(refusal, f"raise {error}"))
    install("npy_format", NPY)
    np.save(tmp_path / "x.npy", np.arange(3))
    (tmp_path / "unknown").write_bytes(b"?")
    title = "Plug-in 'a_failing_format' of group orbit_ckpt.formats, package a_failing_format"
    with caplog.at_level(logging.WARNING):
        assert ocp.load(tmp_path / "x.npy")["array"].tolist() == [0, 1, 2]
        with pytest.raises(CheckpointNotFoundError, match=f"npy: {title} failed: ") as raised:
            ocp.load(tmp_path / "unknown")
    assert "its name does not end in .npy" in str(raised.value)
    assert f"{title} cannot be used: {error.partition('(')[0]}: " in caplog.text


def test_a_linked_directory_does_not_keep_other_formats_from_being_asked(
    install: Callable[[str, str], None], tmp_path: Path
) -> None:
    install("npy_format", NPY)
    (tmp_path / "run" / "real").mkdir(parents=True)
    (tmp_path / "run" / "latest").symlink_to("real")
    with pytest.raises(CheckpointNotFoundError, match=r"(?s)Levanter: no metadata.*npy \("):
        ocp.load(tmp_path / "run")


def test_own_checkpoints_import_no_other_format(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": 1})
    known = [
        name for name in sys.modules if name.startswith("orbit_ckpt._src.formats.safetensors.read")
    ]
    for name in known:
        del sys.modules[name]
    assert ocp.load(tmp_path / "x") == {"a": 1}
    assert "orbit_ckpt._src.formats.safetensors.read" not in sys.modules


def test_a_directory_with_a_checkpoint_and_other_files_is_the_checkpoint(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": 1})
    (tmp_path / "x" / "model.safetensors").write_bytes(b"whatever")
    assert ocp.load(tmp_path / "x") == {"a": 1}


def test_a_pipe_is_of_no_format_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "run" / "step-1").mkdir(parents=True)
    pipes = ["model.safetensors", "metadata.json", "run/metadata.json", "run/step-1/metadata.json"]
    for pipe in pipes:
        os.mkfifo(tmp_path / pipe)
    for path in (tmp_path, tmp_path / "model.safetensors", tmp_path / "run"):
        with pytest.raises(CheckpointNotFoundError):
            ocp.load(path)


def test_a_path_that_does_not_exist_is_of_no_format(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="nothing is there") as caught:
        ocp.load(tmp_path / "model.safetensors")
    assert str(caught.value).endswith("Give the directory that was saved to.")


KINDS = {
    "eformer": "eformer",
    "eformer/safetensors_single": "safetensors",
    "flax_msgpack": "flax_msgpack",
    "levanter": "levanter",
    "safetensors": "safetensors",
    "t5x": "t5x",
    "t5x/tf_t5_ckpt": "tf_checkpoint",
    "t5x/upstream_mtf_tiny_t5": "tf_checkpoint",
    "t5x/upstream_tiny_orbax_legacy": "orbax",
}
"""Formats of the samples by their paths, those of a directory's others by its own."""

STORED = sorted(
    path for path in SAMPLES.glob("*/*") if path.name != "expected.json" and path.parent != SAMPLES
)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_the_format_of_every_sample_is_detected(path: Path) -> None:
    name = path.relative_to(SAMPLES)
    assert ocp.detect_format(path) == KINDS.get(str(name), KINDS[name.parts[0]])


def test_the_format_of_own_checkpoints_and_their_parts_is_orbax(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as run:
        run.save(1, args=args.Composite(state=args.StandardSave({"a": 1}), n=args.JsonSave([2])))
        run.save(2, args=args.Composite(n=args.JsonSave([2])))
    run_path = tmp_path / "run"
    for path in (run_path, run_path / "1", run_path / "1" / "state", run_path / "2"):
        assert ocp.detect_format(path) == "orbax"
    assert ocp.detect_format(str(run_path)) == "orbax"


def test_what_has_no_format_is_refused_as_load_refuses_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="nothing is there"):
        ocp.detect_format(tmp_path / "nothing")
    (tmp_path / "data").write_bytes(b"\xff\0\1")
    for path in (tmp_path, tmp_path / "data"):
        with pytest.raises(CheckpointNotFoundError, match=r"(?s)Other formats:.*safetensors: "):
            ocp.detect_format(path)
    (tmp_path / "5.orbax-checkpoint-tmp-1").mkdir()
    with pytest.raises(IncompleteCheckpointError):
        ocp.detect_format(tmp_path / "5.orbax-checkpoint-tmp-1")


def test_built_in_formats_are_listed_under_their_own_names() -> None:
    found = [(known.name, known.extra) for known in built_in_formats()]
    assert found == [(known.title, None) for known in BUILT_IN.values()]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the formats that a test registers."""
    monkeypatch.setattr("orbit_ckpt._src.formats.base._registered", {})


class Squares(formats.Format):
    """A format whose arrays are computed; a file holds their shape."""

    name = "squares"
    extra = None

    def __init__(self) -> None:
        self.boxes: list[tuple[slice, ...]] = []

    def sniff(self, path: Path) -> str | None:
        return None if path.suffix in {".squares", ".npy"} else "another suffix"

    def open(self, path: Path) -> formats.StoredTree:
        shape = tuple(map(int, path.read_text().split()))

        def decode(box: tuple[slice, ...]) -> np.ndarray:
            self.boxes.append(box)
            return (np.arange(np.prod(shape)).reshape(shape) ** 2)[box]

        array = formats.DecodedArray(shape, np.dtype(np.int32), (2,) * len(shape), decode)
        return formats.stored_tree(path, {("a", "b"): array}, files=[path], metadata={"k": 1})


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("shape", [(5, 3), (4,), (), (0, 3)])
def test_arrays_that_a_format_decodes_are_read_like_others(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    formats.register_format(Squares())
    path = tmp_path / "x.squares"
    path.write_text(" ".join(map(str, shape)))
    expected = (np.arange(np.prod(shape)).reshape(shape) ** 2).astype(np.int32)
    found = ocp.load(path)["a"]["b"]
    assert found.dtype == np.int32
    assert np.array_equal(found, expected)
    described: Any = ocp.metadata(path)
    assert described.tree["a"]["b"].shape == shape
    assert described.custom_metadata == {"k": 1}
    ocp.convert(path, tmp_path / "converted")
    assert np.array_equal(ocp.load(tmp_path / "converted")["a"]["b"], expected)


@pytest.mark.usefixtures("registered")
def test_a_part_of_an_array_decodes_only_the_chunks_that_it_touches(tmp_path: Path) -> None:
    known = Squares()
    formats.register_format(known)
    (tmp_path / "x.squares").write_text("6 4")
    lazy = ocp.load(tmp_path / "x.squares", lazy=True)["a"]["b"]
    ocp.plan(tmp_path / "x.squares")
    assert known.boxes == []
    assert lazy[0, 1] == 1
    assert known.boxes == [(slice(0, 2), slice(0, 2))]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (lambda _: 1 / 0, r"failed for the box .*ZeroDivisionError"),
        (lambda _: np.zeros(7), r"values of shape \(7,\) for the box .*, expected \(2,\)"),
    ],
)
def test_a_decoder_that_fails_is_an_error_that_says_so(
    decode: Callable[[object], np.ndarray], message: str, tmp_path: Path
) -> None:
    class Broken(Squares):
        def open(self, path: Path) -> formats.StoredTree:
            array = formats.DecodedArray((2,), np.dtype(np.int32), (2,), decode)
            return formats.stored_tree(path, {"a": array})

    formats.register_format(Broken())
    (tmp_path / "x.squares").touch()
    with pytest.raises(FormatError, match=message):
        ocp.load(tmp_path / "x.squares")


@pytest.mark.parametrize("names", [["a", ("a", "b")], ["a.b", ("a", "b")]])
def test_names_that_make_no_tree_are_refused(
    names: list[str | tuple[str, ...]], tmp_path: Path
) -> None:
    array = formats.RawArray((1,), np.dtype(np.int8), b"x")
    with pytest.raises(FormatError, match="do not make a tree"):
        formats.stored_tree(tmp_path, dict.fromkeys(names, array))


@pytest.mark.usefixtures("registered")
def test_a_registered_format_wins_over_a_plugin(
    install: Callable[[str, str], None], tmp_path: Path
) -> None:
    install("npy_format", NPY)
    (tmp_path / "x.npy").write_text("2")
    formats.register_format(Squares())
    assert ocp.load(tmp_path / "x.npy")["a"]["b"].tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"'squares' is registered already.*override=True"):
        formats.register_format(Squares())
    formats.register_format(Squares(), override=True)
    with pytest.raises(TypeError, match=r"must be a format, found .*class"):
        formats.register_format(Squares)  # pyright: ignore[reportArgumentType] - the mistake


def test_of_two_plugins_for_a_file_the_preferred_one_reads_it(
    install: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("npy_one", NPY + WRITER)
    install("npy_two", (NPY + WRITER).replace('"array"', '"other"'))
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(PluginConflictError, match=r"'npy_one'.*'npy_two'.*ORBIT_CKPT_PREFER"):
        ocp.load(tmp_path / "x.npy")
    ocp.save(tmp_path / "saved", {"w": np.arange(3)})
    with pytest.raises(PluginConflictError, match=r"claim the format to write 'npy'"):
        ocp.convert(tmp_path / "saved", tmp_path / "w.npy", to="npy")
    monkeypatch.setenv("ORBIT_CKPT_PREFER_PLUGINS", "some-package, NPY-Two")
    assert list(ocp.load(tmp_path / "x.npy")) == ["other"]
