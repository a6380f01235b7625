r"""Rules as a document, such as a TOML or JSON file.

    [[rules]]
    rule = "rename"
    pattern = "params/layers_*/**"
    to = 'params/blocks/\1/\2'

A table's `rule` is the name of a rule class in snake case; the other keys are the fields of that
class. A pattern may be `{ regex = "..." }`. A document cannot hold functions: there is no `map` and
no `state_transform`, `split` cuts into equal parts, and the function of `combine` is
`"concatenate"` or `"stack"` with an `axis`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
import msgspec
import numpy as np
from msgspec import Struct, structs

from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.guards import is_json_object, is_list
from orbit_ckpt._src.transform.engine import Rule
from orbit_ckpt._src.transform.patterns import Pattern
from orbit_ckpt._src.transform.rules import Assignments
from orbit_ckpt._src.transform.value_rules import Combine


class _Regex(Struct, forbid_unknown_fields=True):
    regex: str


class _Assignment(Struct, forbid_unknown_fields=True):
    pattern: str | _Regex
    to: str | None = None


_WRITTEN: Mapping[object, tuple[Any, str]] = {
    str: (str, "a text"),
    object: (str, "a text"),
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    Pattern: (str | _Regex, 'a text or a regular expression, { regex = "..." }'),
    Sequence[Pattern]: (list[str | _Regex], 'a list of texts or { regex = "..." }'),
    Sequence[str]: (tuple[str, ...], "a list of texts"),
    Sequence[int] | None: (list[int], "a list of whole numbers"),
    Assignments: (list[_Assignment], "a list of tables with pattern and, unless it falls back, to"),
}
"""What a document holds for a field of each type, and how errors call it."""

_NOT_WRITTEN = frozenset({"fn", "on"})
"""Functions, and the arrays that they are called with."""

_FUNCTION = {
    "fn": (Literal["concatenate", "stack"], '"concatenate" or "stack"'),
    "axis": (int, "a whole number"),
}
"""What a document holds for the function of `Combine`."""


def parse_rules(document: object, where: str = "rules") -> list[Rule]:
    """Return the rules that a document describes.

    Args:
        document: The content of a TOML or JSON file: a table with `rules`, a list of tables.
        where: Name of the document in errors.

    Raises:
        TransformError: It is not a valid rule document. The error names the rule and the field, and
            lists the possibilities.
    """
    fields: Mapping[str, object] = {}
    found = _kind(document)
    if is_json_object(document):
        fields = document
        found = f"the fields {', '.join(map(str, fields))}"
        if fields.keys() <= {"rules"}:
            found = f"{_kind(fields.get('rules'))} as `rules`"
    entries = fields.get("rules")
    if len(fields) != 1 or not is_list(entries):
        raise TransformError(
            f"{where}: found {found}, expected a table with `rules`, a list of tables such as "
            '{ rule = "drop", pattern = "opt_state/**" }.'
        )
    return [
        _parse_rule(entry, f"{where}: rule {number}") for number, entry in enumerate(entries, 1)
    ]


def _parse_rule(entry: object, where: str) -> Rule:
    if not is_json_object(entry):
        raise TransformError(f"{where}: found {_kind(entry)}, expected a table.")
    table = dict(entry)
    name = table.pop("rule", None)
    # independent of the order of imports
    known = sorted(_written_rules(Rule), key=lambda rule: rule.__module__)
    rules = {str(rule.__struct_config__.tag): rule for rule in known}
    rule = rules.get(name) if isinstance(name, str) else None
    if rule is None:
        known = ", ".join(sorted(rules))
        raise TransformError(
            f"{where}: `rule` is {name!r}{_nearest(name, rules)}. There are {known}."
        )
    values = _parse_fields(rule, table, f"{where} ({name})")
    try:
        return rule(**values)
    except (ValueError, TypeError) as error:
        raise TransformError(f"{where} ({name}): {error}") from error


def _written_rules(kind: type[Rule]) -> Iterator[type[Rule]]:
    """Yield the rules that a document can describe: those that require no function."""
    for rule in kind.__subclasses__():
        required = {field.name for field in structs.fields(rule) if field.required}
        is_abstract = rule.apply is Rule.apply
        if not is_abstract and (rule is Combine or not required & _NOT_WRITTEN):
            yield rule
        yield from _written_rules(rule)


def _parse_fields(rule: type[Rule], table: Mapping[str, object], where: str) -> dict[str, Any]:
    """Return the values for the fields of a rule."""
    known = [field for field in structs.fields(rule) if field.name not in _NOT_WRITTEN]
    written = {
        field.name: _WRITTEN.get(field.type, (field.type, "another value")) for field in known
    }
    required = [field.name for field in known if field.required]
    if rule is Combine:
        written |= _FUNCTION
        required.append("fn")
    values: dict[str, Any] = {}
    for field, value in table.items():
        if field not in written:
            raise TransformError(
                f"{where}: there is no field {field!r}{_nearest(field, written)}. It has "
                f"{', '.join(written)}."
            )
        kind, expected = written[field]
        try:
            values[field] = _python(msgspec.convert(value, kind))
        except (msgspec.ValidationError, re.error) as error:
            raise TransformError(
                f"{where}: `{field}`: found {value!r}, expected {expected}: {error}."
            ) from error
    missing = [repr(field) for field in required if field not in table]
    if missing:
        raise TransformError(f"{where}: {' and '.join(missing)} must be given.")
    if rule is Combine:
        values["fn"] = partial(_combine, values["fn"], values.pop("axis", None))
    return values


def _python(value: object) -> Any:
    """Convert a value of a document to a field of a rule."""
    if isinstance(value, _Regex):
        return re.compile(value.regex)
    if isinstance(value, _Assignment):
        return _python(value.pattern), value.to
    return list(map(_python, value)) if is_list(value) else value


def _combine(name: str, axis: int | None, *parts: object) -> object:
    module = np if all(isinstance(part, np.ndarray) for part in parts) else jnp
    default = -1 if name == "concatenate" else 0
    return getattr(module, name)(parts, axis=default if axis is None else axis)


def _nearest(name: object, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
