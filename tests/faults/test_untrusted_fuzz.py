"""Checkpoints of every format with anything changed in them: an error of ours, or harmless.

More examples: `nox -s soak -- tests/faults/test_untrusted_fuzz.py`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.layout import MANIFEST, OCDBT_MANIFEST, Extent, Value
from orbit_ckpt._src.storage.manifest import Manifest
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.value_write import DatabaseWriter
from orbit_ckpt.errors import CheckpointError
from tests.support import checkpointer

CANARY = b"canary:0123456789abcdef:canary:0123456789abcdef:canary:012345678"
SAMPLES = Path(__file__).parent.parent / "formats" / "samples"
_MOST_MB = 512

TREE = {
    "params": {"w": np.arange(64, dtype=np.uint8), "k": jnp.arange(3000.0)},
    "text": "words",
    "step": 7,
    "empty": {},
}


def _save_own(path: Path, **options: Any) -> None:
    checkpointer(use_compression=False, **options).save(path, TREE)


def _save_items(path: Path) -> None:
    handler = ocp.CompositeCheckpointHandler()
    items = {"state": ocp.args.StandardSave(TREE), "about": ocp.args.JsonSave({"a": 1})}
    ocp.Checkpointer(handler).save(path, ocp.args.Composite(**items))


def _convert(path: Path, to: Any) -> None:
    source = path.with_name("source")
    ocp.save(source, {"params": TREE["params"], "step": 7})
    ocp.convert(source, path, to=to)


def _save_shards(path: Path) -> None:
    path.mkdir()
    for shard in "ab":
        _convert(path / f"{shard}.safetensors", "safetensors")
        shutil.rmtree(path / "source")
        file = path / f"{shard}.safetensors"
        file.write_bytes(file.read_bytes().replace(b"params.", b"par%sms." % shard.encode()))
        file.write_bytes(file.read_bytes().replace(b'"step"', b'"ste%s"' % shard.encode()))
    names = {f"par{s}ms.{n}": f"{s}.safetensors" for s in "ab" for n in "wk"}
    names |= {f"ste{s}": f"{s}.safetensors" for s in "ab"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


FORMATS: dict[str, Callable[[Path], object]] = {
    "database": lambda path: _save_own(path, use_zarr3=False),
    "database, zarr3": lambda path: _save_own(path, use_zarr3=True),
    "files": lambda path: _save_own(path, use_ocdbt=False, use_zarr3=False),
    "files, zarr3": lambda path: _save_own(path, use_ocdbt=False, use_zarr3=True),
    "items": _save_items,
    "t5x": lambda path: _convert(path, "t5x"),
    "flax": lambda path: _convert(path.with_suffix(".msgpack"), "flax"),
    "shards": _save_shards,
    "eformer": lambda path: shutil.copytree(SAMPLES / "eformer" / "run-20_structured", path),
    "levanter": lambda path: shutil.copytree(SAMPLES / "levanter" / "step-7", path),
}


@functools.cache
def sample(name: str) -> Path:
    """Return a checkpoint of a format, made once."""
    path = Path(tempfile.mkdtemp()) / "checkpoint_1"
    FORMATS[name](path)
    return next(p for p in (path, path.with_suffix(".msgpack")) if p.exists())


EVIL_NAMES = [
    *("../secret", "../../secret", "a/../../secret", "d/../../secret", "..", ".", "", "/", "//x"),
    *("x\0y", "/etc/hostname", "s3://b/k", "file:///etc/hostname", "\x1b[2J", "x" * 300, "\ud800"),
    *("../elsewhere", "../elsewhere/0", "a\\..\\b", "C:\\x", "~/x", "x/" * 2500),
]
EVIL_NUMBERS = [-1, 0, 1, 2**31, 2**40, 2**63, 2**64, 2**70, 10**40, 0.5, float("nan")]
VALUES = st.one_of(
    st.sampled_from(EVIL_NAMES),
    st.sampled_from(EVIL_NUMBERS),
    st.none() | st.booleans() | st.text(max_size=6),
    st.lists(st.sampled_from([*EVIL_NUMBERS, *EVIL_NAMES]), max_size=3),
    st.dictionaries(st.sampled_from(EVIL_NAMES), st.sampled_from(EVIL_NUMBERS), max_size=2),
    st.lists(st.just(1), min_size=40, max_size=80),
)


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def _change_value(draw: st.DrawFn, node: Any) -> None:
    """Change a value or a key somewhere in a document."""
    while True:
        keys = sorted(node) if isinstance(node, dict) else range(len(node))
        if not keys:
            return
        key: Any = draw(st.sampled_from(keys))
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 3)) == 0:
            break
        node = inner
    if isinstance(node, dict) and draw(st.booleans()):
        node[draw(st.sampled_from(EVIL_NAMES))] = node.pop(key)
    else:
        node[key] = draw(VALUES)


def _change_json(draw: st.DrawFn, path: Path) -> None:
    """Change something in a JSON document, or in the header of a safetensors file."""
    documents: list[tuple[Path, Any]] = []
    for file in _files(path):
        with contextlib.suppress(ValueError):
            found = json.loads(file.read_bytes())
            if isinstance(found, dict | list) and found:
                documents.append((file, found))
    if not documents:
        return
    file, document = draw(st.sampled_from(documents))
    _change_value(draw, document)
    if isinstance(document, dict) and isinstance(document.get("value_metadata_tree"), str):
        with contextlib.suppress(ValueError):
            inner = json.loads(document["value_metadata_tree"])
            if isinstance(inner, dict) and draw(st.integers(0, 4)) == 0:
                _change_value(draw, inner)
                document["value_metadata_tree"] = json.dumps(inner)
    file.write_bytes(json.dumps(document).encode())


def _change_database(draw: st.DrawFn, path: Path) -> None:
    """Change where a value of a database is, or what its documents say."""
    roots = [file.parent for file in _files(path) if file.name == OCDBT_MANIFEST]
    if not roots:
        return
    root = draw(st.sampled_from(roots))
    index: dict[str, Value] = {
        key: value
        if isinstance(value, bytes)
        else Extent(os.path.relpath(value.file, root), value.offset, value.length)
        for key, value in read_index(root).items()
    }
    key = draw(st.sampled_from(sorted(index)))
    value = index[key]
    if isinstance(value, bytes) and draw(st.booleans()):
        with contextlib.suppress(ValueError):
            document = json.loads(value)
            _change_value(draw, document)
            value = json.dumps(document).encode()
        index[key] = value
    else:
        known = [v for v in index.values() if isinstance(v, Extent)]
        place = draw(st.sampled_from([*known, Extent("d/x", 0, 64)]))
        names = st.sampled_from([place.file, *(n for n in EVIL_NAMES if n != "\ud800")])
        numbers = st.sampled_from([0, 1, 64, 2**31, 2**60, 2**62])
        index[key] = Extent(
            draw(names), draw(numbers | st.just(place.offset)), draw(numbers | st.just(64))
        )
    (root / OCDBT_MANIFEST).unlink()
    writer = DatabaseWriter(root, data_file_bytes=None)
    writer.refer(index, Manifest())
    writer.close()


def _change_links(draw: st.DrawFn, path: Path) -> None:
    """Put a link in the place of a file or directory, or beside it."""
    if path.is_file():
        return
    places = sorted(path.rglob("*"))
    place = draw(st.sampled_from(places))
    target = draw(
        st.sampled_from(["../secret", "../../secret", "..", ".", "loop", "../elsewhere", "/etc"])
    )
    if draw(st.booleans()):
        place = place.with_name("loop")
    elif place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    os.symlink(target, place)


def _change_bytes(draw: st.DrawFn, path: Path) -> None:
    """Change bytes of a file, names above all."""
    file = draw(st.sampled_from(_files(path)))
    data = file.read_bytes()
    known = [n for n in (b"params", b"target", b"file", b"state.", b"step", b"model") if n in data]
    if known and draw(st.booleans()):
        name = draw(st.sampled_from(known))
        evil = draw(st.sampled_from([b"../secret", b"../../", b"/etc/hostname", b"\0\0\0\0"]))
        file.write_bytes(data.replace(name, evil[: len(name)].ljust(len(name), b"/")))
        return
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 16)))
    file.write_bytes(data[:start] + draw(st.binary(max_size=12)) + data[end:])


CHANGES = [_change_json, _change_database, _change_links, _change_bytes]


def _holds_canary(value: object) -> bool:
    """Whether something loaded has the bytes of the canary."""
    leaves = jax.tree.leaves(value)
    for leaf in leaves:
        data = np.asarray(leaf).tobytes() if isinstance(leaf, np.ndarray | jax.Array) else b""
        if CANARY[:16] in data or CANARY[:16].decode() in str(leaf):
            return True
    return False


def _copy(path: Path) -> object:
    copied = path.with_name(f"copied-{path.name}")
    ocp.copy(path, copied, check=False)
    assert not any(CANARY[:16] in file.read_bytes() for file in _files(copied))
    return None


def _get(leaf: Any) -> object:
    return leaf.get() if hasattr(leaf, "get") else leaf


USES: list[Callable[[Path], object]] = [
    ocp.load,
    ocp.metadata,
    lambda path: ocp.load(path, lazy=True),
    lambda path: [_get(leaf) for leaf in jax.tree.leaves(ocp.load(path, lazy=True))],
    ocp.plan,
    lambda path: str(ocp.verify(path)),
    _copy,
]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
@settings(  # shrinking takes minutes; the changes are small already
    max_examples=max(5, settings().max_examples // 5), phases=[Phase.reuse, Phase.generate]
)
@given(data=st.data())
def test_whatever_is_changed_nothing_outside_is_read(name: str, data: st.DataObject) -> None:
    change = data.draw(st.sampled_from(CHANGES))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "run"
        path = root / sample(name).name
        _plant_canaries(root)
        if sample(name).is_dir():
            shutil.copytree(sample(name), path)
            if data.draw(st.booleans()):
                for manifest in path.rglob(MANIFEST):
                    manifest.unlink()
        else:
            shutil.copy(sample(name), path)
        _change(change, data, path)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for use in USES:
            try:
                found = use(path)
            except CheckpointError as error:
                found = str(error)
            except ValueError as error:  # of the argument: a part of another checkpoint, one file
                assert use is _copy, error  # noqa: PT017 - only copying refuses these so
                found = None
            assert not _holds_canary(found)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert (after - before) >> 10 < _MOST_MB


def _plant_canaries(root: Path) -> None:
    (root / "elsewhere").mkdir(parents=True)
    for file in ("secret", "../secret", "elsewhere/secret", "elsewhere/0", "elsewhere/.zarray"):
        (root / file).write_bytes(CANARY)


def _change(change: Callable[[Any, Path], object], data: st.DataObject, path: Path) -> None:
    with contextlib.suppress(UnicodeEncodeError):  # a name that cannot be written
        change(data.draw, path)
