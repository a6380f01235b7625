"""One file of handlers, as its users write it, with Orbax and with orbit_ckpt."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import orbax.checkpoint as orbax

import orbit_ckpt
from tests.interop import handlers_for_orbax

_TEXT = Path(handlers_for_orbax.__file__).read_text()


def _with_other_import() -> ModuleType:
    name = "handlers_for_orbit"
    if name not in sys.modules:
        module = sys.modules[name] = ModuleType(name)
        text = _TEXT.replace("orbax.checkpoint", "orbit_ckpt")
        exec(compile(text, handlers_for_orbax.__file__, "exec"), module.__dict__)  # noqa: S102 - our own text
    return sys.modules[name]


@dataclass(frozen=True)
class Library:
    """A library and the handlers that are registered with it.

    Attributes:
        name: For messages.
        ocp: The library.
        user: The module with the user's types and handlers.
    """

    name: str
    ocp: Any
    user: Any

    def __repr__(self) -> str:
        return self.name


ORBAX = Library("orbax", orbax, handlers_for_orbax)
OURS = Library("ours", orbit_ckpt, _with_other_import())
UNCHANGED = Library("unchanged", orbit_ckpt, handlers_for_orbax)
"""Handlers that derive from Orbax's own classes, registered with orbit_ckpt."""
