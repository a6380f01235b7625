"""Stores that a program or a plug-in adds; `conftest.store` runs the other tests on one too."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, MANIFEST
from orbit_ckpt.errors import CorruptionError, PluginConflictError, StorageError
from orbit_ckpt.stores import register_store
from orbit_ckpt.testing import ObjectClientContract
from orbit_ckpt.testing.fakes import MemoryClient

TREE = {"w": np.arange(6.0).reshape(2, 3), "step": 3}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the stores that a test registers."""
    monkeypatch.setattr("orbit_ckpt._src.storage.bucket._registered", {})


class TestMemory(ObjectClientContract):
    @override
    @pytest.fixture
    def client(self) -> MemoryClient:
        return MemoryClient()


class Failing(MemoryClient):
    """Fails or answers wrongly in one method."""

    def __init__(self, name: str, method: str, answer: Callable[..., object]) -> None:
        super().__init__(name)
        setattr(self, method, answer)


def save_and_load(url: str) -> None:
    ocp.save(url, TREE)
    ocp.load(url)


def fail(*_: object) -> object:
    raise RuntimeError("503 slow down")


@pytest.mark.parametrize("method", ["read", "write", "list", "version"])
def test_a_client_that_fails_is_an_error_of_the_storage_with_the_url(method: str) -> None:
    register_store("cloud", lambda name: Failing(name, method, fail))
    with pytest.raises(StorageError, match=r"cloud://b/run.*failed: RuntimeError: 503 slow down"):
        save_and_load("cloud://b/run")


def test_a_client_that_answers_nonsense_is_named() -> None:
    client = MemoryClient()
    register_store("cloud", lambda _: client)
    ocp.save("cloud://nonsense/run", TREE)
    read, listed = client.read, client.list
    client.read = lambda *_: "text"  # pyright: ignore[reportAttributeAccessIssue] - the mistake
    with pytest.raises(StorageError, match=r"client returned 'text'.*expected bytes"):
        ocp.load("cloud://nonsense/run")
    client.read = lambda key, start=0, stop=None: (
        read(key, start, stop) if stop is None else bytes(1 << 24)
    )
    with pytest.raises(StorageError, match=r"client returned \d+ bytes for a read of \d+"):
        ocp.load("cloud://nonsense/run")
    client.read, client.list = read, lambda prefix: [*listed(prefix), "other/key"]
    with pytest.raises(StorageError, match="client listed 'other/key', expected keys that begin"):
        ocp.load("cloud://nonsense/lost")


def test_a_flipped_bit_in_a_client_s_store_is_found() -> None:
    client = MemoryClient()
    register_store("cloud", lambda _: client)
    ocp.save("cloud://flipped/run", {"w": np.arange(1000.0)})
    data = {key: client.read(key) or b"" for key in client.list("run/")}
    key = max(data, key=lambda key: len(data[key]))
    client.write(key, bytes([data[key][0] ^ 1]) + data[key][1:])
    assert not ocp.verify("cloud://flipped/run")
    with pytest.raises(CorruptionError):
        ocp.load("cloud://flipped/run")


def test_what_only_tensorstore_reads_is_read_through_memory(tmp_path: Path) -> None:
    client = MemoryClient()
    register_store("cloud", lambda _: client)
    handler = ocp.PyTreeHandler(use_ocdbt=False, use_zarr3=False)
    ocp.Checkpointer(handler).save(tmp_path / "saved", {"w": np.arange(6.0)})
    array = tmp_path / "saved" / "w"
    shutil.rmtree(array)
    blosc: Any = {"compressor": {"id": "blosc"}, "dtype": "<f8", "shape": [6], "chunks": [6]}
    spec = {"driver": "zarr", "kvstore": f"file://{array}/", "metadata": blosc}
    ts.open(spec, create=True).result()[...] = np.arange(6.0) + 1
    (tmp_path / "saved" / MANIFEST).unlink()
    for file in (tmp_path / "saved").rglob("*"):
        if file.is_file():
            client.write(f"run/{file.relative_to(tmp_path / 'saved')}", file.read_bytes())
    client.write(f"run/{COMMIT_MARKER}", b"")
    found = ocp.load("cloud://copied/run")
    assert np.array_equal(found["w"], np.arange(6.0) + 1)


def test_what_opens_no_client_is_named() -> None:
    register_store("cloud", fail)  # pyright: ignore[reportArgumentType] - the mistake
    register_store("odd", lambda name: name)  # pyright: ignore[reportArgumentType] - the mistake
    with pytest.raises(StorageError, match="cloud://b: opening failed: RuntimeError: 503"):
        ocp.load("cloud://b/run")
    with pytest.raises(
        StorageError, match="odd://b: opening returned 'b', expected an object with"
    ):
        ocp.load("odd://b/run")


def test_a_scheme_is_registered_once_unless_overridden() -> None:
    register_store("cloud", MemoryClient)
    with pytest.raises(ValueError, match=r"cloud:// has a store already.*override=True"):
        register_store("cloud", MemoryClient)
    register_store("cloud", MemoryClient, override=True)
    with pytest.raises(ValueError, match="s3:// has a store already"):
        register_store("s3", MemoryClient)
    for scheme in ("file", "https", "A b", ""):
        with pytest.raises(ValueError, match="cannot be the scheme"):
            register_store(scheme, MemoryClient)
    with pytest.raises(TypeError, match="must be a str"):
        register_store(3, MemoryClient)  # pyright: ignore[reportArgumentType] - the mistake
    with pytest.raises(TypeError, match="open_client"):
        register_store("x", "y")  # pyright: ignore[reportArgumentType] - the mistake


def test_a_built_in_store_can_be_replaced() -> None:
    client = MemoryClient()
    register_store("s3", lambda _: client, override=True)
    ocp.save("s3://replaced/run", TREE)
    assert any(client.list("run/"))
    assert ocp.load("s3://replaced/run")["step"] == 3


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install packages with a store of the scheme `cloud`, as pip would leave them."""

    def install_package(name: str) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[orbit_ckpt.stores]\ncloud = {name}:open_it\n")
        (tmp_path / f"{name}.py").write_text(
            "from orbit_ckpt.testing.fakes import MemoryClient\nopened = []\n"
            "def open_it(name):\n    opened.append(name)\n    return MemoryClient(name)\n"
        )
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(tmp_path)

    return install_package


def test_a_store_of_a_plugin_is_found_by_its_scheme(install: Callable[[str], None]) -> None:
    with pytest.raises(ValueError, match="cloud"):
        ocp.load("cloud://plugin/run")
    install("cloud_store")
    ocp.save("cloud://plugin/run", TREE)
    assert ocp.load("cloud://plugin/run")["step"] == 3
    assert sys.modules["cloud_store"].opened == ["plugin"]
    register_store("cloud", MemoryClient)
    with pytest.raises(FileNotFoundError):
        ocp.load("cloud://plugin/run")


def test_two_plugins_of_a_scheme_are_an_error_that_names_both(
    install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("one_cloud")
    install("two_cloud")
    with pytest.raises(PluginConflictError, match=r"one_cloud.*two_cloud.*PREFER_PLUGINS"):
        ocp.save("cloud://conflict/run", TREE)
    monkeypatch.setenv("ORBIT_CKPT_PREFER_PLUGINS", "two-cloud")
    ocp.save("cloud://conflict/run", TREE)
    assert sys.modules["two_cloud"].opened == ["conflict"]
