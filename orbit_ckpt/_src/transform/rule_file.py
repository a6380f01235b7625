r"""Rules as a document: what a TOML or JSON file may say of `orbit_ckpt.transform`.

    [[rules]]
    rule = "rename"
    pattern = "params/layers_*/**"
    to = 'params/blocks/\1/\2'

A rule's fields are those of its class, whose name is written in small letters with underscores. A
pattern may be `{ regex = "..." }`. Functions cannot be written down: `map` and `state_transform`
are left out, `split` cuts into equal parts, and the function of `combine` is `"concatenate"` or
`"stack"` with an `axis`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import jax.numpy as jnp
import msgspec
import numpy as np

from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.transform import rules as r
from orbit_ckpt._src.transform import value_rules as v
from orbit_ckpt._src.transform.engine import Rule

_RULES: dict[str, type[Any]] = {
    "rename": r.Rename,
    "copy": r.Copy,
    "drop": r.Drop,
    "fallback": r.Fallback,
    "combine": v.Combine,
    "split": v.Split,
    "stack": v.Stack,
    "unstack": v.Unstack,
    "transpose": v.Transpose,
    "cast": v.Cast,
    "key_data": v.KeyData,
    "wrap_keys": v.WrapKeys,
    "assignment_map": r.AssignmentMap,
}
_NOT_WRITTEN = frozenset({"fn", "on"})
_FLAGS = frozenset({"overwrite", "allow_unused", "keep", "require_all"})
_NUMBERS = frozenset({"axis", "number", "first"})


def parse_rules(document: object, where: str = "rules") -> list[Rule]:
    """Return the rules that a document describes.

    Args:
        document: What a TOML or JSON file holds: an object with `rules`, a list of objects.
        where: What to call it in errors.

    Raises:
        TransformError: It is none; says which rule and field, and what is possible.
    """
    if not isinstance(document, Mapping):
        raise TransformError(f"{where}: found {_kind(document)}, expected a table with `rules`.")
    fields = cast(Mapping[str, object], document)
    entries = fields.get("rules")
    unknown = sorted(fields.keys() - {"rules"})
    if unknown or not isinstance(entries, list):
        found = f"the fields {', '.join(map(str, fields))}" if fields else "nothing"
        if fields and not unknown:
            found = f"{_kind(entries)} as `rules`"
        raise TransformError(
            f"{where}: found {found}, expected `rules`, a list of tables such as "
            '{ rule = "drop", pattern = "opt_state/**" }.'
        )
    return [
        _parse_rule(entry, f"{where}: rule {number}")
        for number, entry in enumerate(cast(list[object], entries), 1)
    ]


def _parse_rule(entry: object, where: str) -> Rule:
    if not isinstance(entry, Mapping):
        raise TransformError(f"{where}: found {_kind(entry)}, expected a table.")
    fields = dict(cast(Mapping[str, object], entry))
    name = fields.pop("rule", None)
    kind = _RULES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise TransformError(
            f"{where}: `rule` is {name!r}{_nearest(name, _RULES)}. There are {', '.join(_RULES)}."
        )
    where = f"{where} ({name})"
    known = {f.name: f.required for f in msgspec.structs.fields(kind)}
    allowed = [f for f in known if f not in _NOT_WRITTEN]
    if kind is v.Combine:
        allowed += ["fn", "axis"]
    for field in fields:
        if field not in allowed:
            raise TransformError(
                f"{where}: there is no field {field!r}{_nearest(field, allowed)}. It has "
                f"{', '.join(allowed)}."
            )
    missing = [f for f in allowed if known.get(f) and f not in fields]
    if missing:
        raise TransformError(f"{where}: {' and '.join(map(repr, missing))} must be given.")
    values: dict[str, Any] = {
        field: _parse_field(kind, field, value, where) for field, value in fields.items()
    }
    if kind is v.Combine:
        values["fn"] = _function(values, where)
    try:
        return cast(Rule, kind(**values))
    except (ValueError, TypeError, re.error) as error:
        raise TransformError(f"{where}: {error}") from error


def _parse_field(kind: type[Any], field: str, value: object, where: str) -> object:
    place = f"{where}: `{field}`"
    parsed: object
    match field:
        case "pattern":
            parsed = _pattern(value, place)
        case "inputs":
            parsed = [_pattern(e, place) for e in _list(value, place)]
        case "axes":
            parsed = [_of(int, e, place) for e in _list(value, place)]
        case "to" if kind is v.Split:
            parsed = tuple(_of(str, e, place) for e in _list(value, place))
        case "rules":
            parsed = [_assignment(e, place) for e in _list(value, place)]
        case _:
            type_ = bool if field in _FLAGS else int if field in _NUMBERS else str
            parsed = _of(type_, value, place)
    return parsed


def _assignment(value: object, place: str) -> tuple[object, str | None]:
    if not isinstance(value, Mapping):
        raise TransformError(f"{place}: found {_kind(value)}, expected tables of pattern and to.")
    fields = cast(Mapping[str, object], value)
    if not {"pattern"} <= fields.keys() <= {"pattern", "to"}:
        raise TransformError(f"{place}: found {dict(fields)}, expected a pattern and, mostly, to.")
    to = fields.get("to")
    return _pattern(fields["pattern"], place), None if to is None else _of(str, to, place)


def _pattern(value: object, place: str) -> str | re.Pattern[str]:
    if isinstance(value, str):
        return value
    fields = dict(cast(Mapping[str, object], value) if isinstance(value, Mapping) else {})
    if set(fields) != {"regex"}:
        raise TransformError(f'{place}: found {value!r}, expected a text or {{ regex = "..." }}.')
    text = _of(str, fields["regex"], place)
    try:
        return re.compile(text)
    except re.error as error:
        raise TransformError(f"{place}: {text!r} is no regular expression: {error}.") from error


def _function(values: dict[str, Any], where: str) -> Callable[..., object]:
    name, axis = values.pop("fn"), values.pop("axis", None)
    if name not in ("concatenate", "stack"):
        raise TransformError(f'{where}: `fn` is {name!r}; a file can say "concatenate" or "stack".')

    def combine(*parts: object) -> object:
        module = np if all(isinstance(part, np.ndarray) for part in parts) else jnp
        default = -1 if name == "concatenate" else 0
        function = partial(getattr(module, name), axis=default if axis is None else axis)
        return function(parts)

    return combine


def _of(kind: type[Any], value: object, place: str) -> Any:
    if type(value) is not kind:
        expected = {bool: "true or false", int: "a whole number", str: "a text"}[kind]
        raise TransformError(f"{place}: found {value!r}, expected {expected}.")
    return value


def _list(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        raise TransformError(f"{place}: found {value!r}, expected a list.")
    return cast(list[object], value)


def _nearest(name: object, known: Mapping[str, object] | Sequence[str]) -> str:
    near = difflib.get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
