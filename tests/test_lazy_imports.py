from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from orbit_ckpt._src.lazy_imports import _ObservedLoader, when_imported

NAME = "package_of_a_test"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    file = tmp_path / f"{NAME}.py"
    file.write_text("value = 1")
    return file


pytestmark = pytest.mark.usefixtures("package")


def test_function_is_called_once_the_package_has_been_imported() -> None:
    values: list[object] = []
    when_imported(NAME, lambda module: values.append(module.value))
    assert values == []
    importlib.import_module(NAME)
    importlib.reload(sys.modules[NAME])
    assert values == [1]


def test_function_is_called_at_once_if_the_package_is_imported() -> None:
    importlib.import_module(NAME)
    found: list[ModuleType] = []
    when_imported(NAME, found.append)
    assert found == [sys.modules[NAME]]


def test_every_function_is_called() -> None:
    calls: list[str] = []
    when_imported(NAME, lambda _: calls.append("a"))
    when_imported(NAME, lambda _: calls.append("b"))
    importlib.import_module(NAME)
    assert sorted(calls) == ["a", "b"]


def test_import_that_fails_is_observed_again(package: Path) -> None:
    found: list[ModuleType] = []
    when_imported(NAME, found.append)
    package.write_text("raise ValueError('broken')")
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module(NAME)
    assert found == []
    package.write_text("value = 'now complete'")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert found == [sys.modules[NAME]]


def test_looking_for_the_package_does_not_use_up_the_call() -> None:
    found: list[ModuleType] = []
    when_imported(NAME, found.append)
    assert importlib.util.find_spec(NAME) is not None
    importlib.import_module(NAME)
    assert found == [sys.modules[NAME]]


def test_imported_package_has_the_loader_of_its_file() -> None:
    when_imported(NAME, lambda _: None)
    module = importlib.import_module(NAME)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert not isinstance(module.__loader__, _ObservedLoader)
