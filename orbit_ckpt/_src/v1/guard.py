"""What all option classes of the v1 API share: an active context cannot be changed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from typing import ClassVar, Self

from typing_extensions import override

from orbit_ckpt._src.text import warn_caller
from orbit_ckpt._src.tree.diff import nearest_names

FROZEN: ContextVar[frozenset[int]] = ContextVar("orbit_ckpt_frozen_options", default=frozenset())
"""Identities of the active contexts of this thread or task, and of all their options."""

Unused = Mapping[str, str]
"""By option without effect, why it is not needed."""


def check_mutable(owner: object) -> None:
    """Check that an object does not belong to an active context.

    Raises:
        RuntimeError: It does.
    """
    if id(owner) in FROZEN.get():
        raise RuntimeError(
            f"{type(owner).__qualname__} belongs to an active Context, whose options are fixed. "
            "Set options before the with block, or make another: Context(context)."
        )


class Options:
    """Base of the option classes: fields can be set until a context with them is active."""

    UNUSED: ClassVar[Unused] = {}

    @override
    def __setattr__(self, name: str, value: object) -> None:
        check_mutable(self)
        known = {field.name: field for field in fields(self)} if is_dataclass(self) else {}
        if name not in known:
            near = nearest_names(name, sorted(known))
            hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}."
            raise AttributeError(f"{type(self).__qualname__} has no option {name!r}; {hint}")
        why = self.UNUSED.get(name)
        if why is not None and value is not None and value != known[name].default:
            warn_caller(f"{type(self).__qualname__}: {name}={value!r} does nothing here: {why}.")
        object.__setattr__(self, name, value)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return a copy with copies of nested options; functions and other objects are shared."""
        copied = copy.copy(self)
        for name, value in vars(self).items():
            object.__setattr__(copied, name, self._copied(value, memo))
        return copied

    def _copied(self, value: object, memo: dict[int, object]) -> object:
        return copy.deepcopy(value, memo) if isinstance(value, Options) else value


def identities_in(owner: object) -> frozenset[int]:
    """Return the identities of an object's options, and of theirs."""
    found: set[int] = set()

    def collect(value: object) -> None:
        if id(value) in found or not isinstance(value, Options):
            return
        found.add(id(value))
        for child in vars(value).values():
            collect(child)

    for value in vars(owner).values():
        collect(value)
    return frozenset({id(owner), *found})
