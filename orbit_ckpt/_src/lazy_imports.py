"""Lazy imports: a public module imports each name on first use.

Importing a public module thus costs almost nothing, and a command that needs no JAX imports none.
Classes are registered with JAX once a program imports it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # `importlib.abc` imports much in Python before 3.14
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec


def lazy_getattr(module: dict[str, Any], sources: Mapping[str, str]) -> Callable[[str], object]:
    """Return a module `__getattr__` that imports each name on first use.

    Args:
        module: The module's `globals()`.
        sources: `MODULE` or `MODULE:NAME` for each name.
    """

    def get(name: str) -> object:
        if name not in sources:
            raise AttributeError(
                f"module {module['__name__']!r} has no attribute {name!r}; names of Orbax that are "
                "missing here are listed in docs/explanation/differences.md"
            )
        source, _, attribute = sources[name].partition(":")
        imported = importlib.import_module(source)
        module[name] = getattr(imported, attribute) if attribute else imported
        return module[name]

    return get


def lazy_names(
    module: dict[str, Any], names: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a public module.

    Args:
        module: The module's `globals()`, with `__all__`.
        names: By module of the implementation, the names as in an import statement: `"A, B as C"`.
            The key `""` holds public modules.
    """
    sources: dict[str, str] = {}
    for source, imported in names.items():
        for item in imported.split(", "):
            name, _, alias = item.partition(" as ")
            at = f"orbit_ckpt._src.{source}:{name}" if source else f"orbit_ckpt.{name}"
            sources[alias or name] = at
    return lazy_getattr(module, sources), lambda: sorted(module["__all__"])


def when_imported(name: str, callback: Callable[[ModuleType], object]) -> None:
    """Call a function with a package as soon as it is imported, or now if it has been.

    Args:
        name: A top-level package.
        callback: Called once; the package's import waits for it to return.
    """
    observer = _ImportObserver(name, callback)
    sys.meta_path.insert(0, observer)
    if name in sys.modules:
        observer.imported(importlib.import_module(name))  # waits for another thread's import


class _ImportObserver:
    """Finds one package as the other finders do, and calls a function after its import."""

    def __init__(self, name: str, callback: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._callback = callback

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        finders = list(sys.meta_path)
        if fullname != self._name or self not in finders:
            return None
        after = finders[finders.index(self) + 1 :]
        found = (finder.find_spec(fullname, path, target) for finder in after)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _ObservedLoader(spec.loader, self.imported))
        return spec

    def imported(self, module: ModuleType) -> None:
        """Call the function once."""
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return
        self._callback(module)


class _ObservedLoader:
    """Loads a module as another loader does, and calls a function once that has succeeded."""

    def __init__(self, loader: Loader, done: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._done = done

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)  # `get_data` and others

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._done(module)


def loaded_jax() -> ModuleType | None:
    """Return JAX if this process has imported it, else None."""
    if "jax" not in sys.modules:
        return None
    import jax  # noqa: PLC0415 - waits for an import in progress on another thread

    return jax
