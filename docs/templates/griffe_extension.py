"""What the API reference needs beyond what its reader of source code sees.

- `Raises:` sections link each error, though most modules that name one do not import it.
- `msgspec.Struct` classes show their constructor, as dataclasses do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe

ERRORS = "orbit_ckpt._src.errors"


def _inside(module: griffe.Module) -> Iterator[griffe.Module | griffe.Class]:
    for member in list(module.members.values()):
        if isinstance(member, griffe.Module):
            yield member
            yield from _inside(member)
        elif isinstance(member, griffe.Class):
            yield member


def _is_struct(class_: griffe.Class) -> bool:
    return any(str(base).rpartition(".")[2] == "Struct" for base in class_.bases)


def _parameters(class_: griffe.Class) -> Iterator[griffe.Parameter]:
    kinds = griffe.ParameterKind
    kind = kinds.keyword_only if "kw_only" in class_.keywords else kinds.positional_or_keyword
    for field in class_.members.values():
        if isinstance(field, griffe.Attribute) and "instance-attribute" in field.labels:
            default = "..." if "factory" in str(field.value) else field.value
            yield griffe.Parameter(
                field.name, annotation=field.annotation, kind=kind, default=default
            )


class Extension(griffe.Extension):
    """Completes the package once it is read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Add names of errors to modules, and constructors to structs."""
        if pkg.name != "orbit_ckpt":
            return
        errors = [name for name in pkg["_src.errors"].members if name.endswith("Error")]
        for found in _inside(pkg):
            if isinstance(found, griffe.Class):
                if _is_struct(found) and "__init__" not in found.members:
                    own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
                    parameters = griffe.Parameters(own, *_parameters(found))
                    found.set_member("__init__", griffe.Function("__init__", parameters=parameters))
            elif found.path != ERRORS:
                for name in errors:
                    if name not in found.members:
                        found.set_member(name, griffe.Alias(name, f"{ERRORS}.{name}"))
