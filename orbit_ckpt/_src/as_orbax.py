"""Let programs that import Orbax use this library.

A finder in `sys.meta_path` answers imports of `orbax.checkpoint` and of its modules. The modules
are those of `orbit_ckpt`, so that a class has one identity under both names; `orbax.checkpoint`
itself is a module of its own, because it also has a version. Nothing is imported before its use.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from typing_extensions import override

from orbit_ckpt._src.errors import AlreadyImportedError

if TYPE_CHECKING:
    from importlib.metadata import Distribution, DistributionFinder

ORBAX = "orbax.checkpoint"
VERSION = "0.12.8"
"""The release of Orbax whose API this library follows, for programs that check the version."""

_OURS = "orbit_ckpt"


def install_as_orbax() -> None:
    """Make `import orbax.checkpoint` import this library, in this process.

    Call it before importing any module that imports Orbax. It works whether Orbax is installed or
    not, and does not affect other packages such as `orbax.export`. Programs that check the version
    find 0.12.8. A second call has no effect.

    Raises:
        AlreadyImportedError: Orbax itself has been imported in this process.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    imported = sys.modules.get(ORBAX)
    if imported is not None:
        raise AlreadyImportedError(
            f"{ORBAX} is already imported, from {getattr(imported, '__file__', None)}, so modules "
            "of this process use its classes. Call install_as_orbax() before anything that "
            "imports Orbax, Flax for example, or run the program unchanged with "
            "`python -m orbit_ckpt.as_orbax program.py`."
        )
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds `orbax.checkpoint` in this library, and the metadata of its distribution."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "orbax":
            others = [finder for finder in sys.meta_path if finder is not self]
            found = (finder.find_spec(fullname, path, target) for finder in others)
            return next(filter(None, found), None) or ModuleSpec(fullname, None, is_package=True)
        if fullname == ORBAX:
            return ModuleSpec(fullname, _Loader(_make_package), is_package=True)
        if fullname == f"{ORBAX}.version":
            return ModuleSpec(fullname, _Loader(_make_version))
        if not fullname.startswith(f"{ORBAX}."):
            return None
        name = f"{_OURS}{fullname.removeprefix(ORBAX)}"
        if not _is_public_module(name):
            # `from orbax.checkpoint import missing` hides an error about Orbax's own name
            raise ModuleNotFoundError(_explain_missing(fullname), name=name)
        return ModuleSpec(fullname, _Loader(lambda: importlib.import_module(name)))

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        """Answer `importlib.metadata.version("orbax-checkpoint")`."""
        is_asked = re.sub(r"[-_.]+", "-", context.name or "").lower() == "orbax-checkpoint"
        return [_make_distribution()] if is_asked else []


class _Loader(Loader):
    """Loads a module by calling a function, and keeps the attributes of the module."""

    def __init__(self, make: Callable[[], ModuleType]) -> None:
        self._make = make
        self._spec: ModuleSpec | None = None

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = self._make()
        self._spec = module.__spec__ or spec
        return module

    @override
    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has set it to the one of Orbax's name


def _make_package() -> ModuleType:
    ours = importlib.import_module(_OURS)

    def get(name: str) -> object:
        if hasattr(ours, name):
            return getattr(ours, name)
        if _is_public_module(f"{_OURS}.{name}"):  # Orbax's package imports all of its modules
            return importlib.import_module(f"{_OURS}.{name}")
        raise AttributeError(_explain_missing(f"{ORBAX}.{name}"), name=name, obj=package)

    package = ModuleType(ORBAX, ours.__doc__)
    vars(package).update(
        __version__=VERSION, __all__=ours.__all__, __getattr__=get, __dir__=lambda: dir(ours)
    )
    return package


def _is_public_module(name: str) -> bool:
    return not name.startswith(f"{_OURS}._") and importlib.util.find_spec(name) is not None


def _make_version() -> ModuleType:
    module = ModuleType(f"{ORBAX}.version", "The release of Orbax whose API this library follows.")
    vars(module).update(
        __version__=VERSION, get_details=lambda: f"orbax-checkpoint version: {VERSION}"
    )
    return module


def _make_distribution() -> Distribution:
    from importlib.metadata import Distribution  # noqa: PLC0415 - slow, and imported by the caller

    class OrbaxDistribution(Distribution):
        @override
        def read_text(self, filename: str) -> str | None:
            is_metadata = filename == "METADATA"
            return f"Name: orbax-checkpoint\nVersion: {VERSION}\n" if is_metadata else None

        @override
        def locate_file(self, path: str | PathLike[str]) -> Path:
            raise FileNotFoundError(f"orbax-checkpoint is provided by {_OURS} and has no {path}")

    return OrbaxDistribution()


def _explain_missing(name: str) -> str:
    return (
        f"{name} does not exist in orbit_ckpt, which replaces orbax.checkpoint in this process; "
        "names of Orbax that are missing here are listed in docs/explanation/differences.md"
    )
