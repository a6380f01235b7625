r"""Rules applied to values, one after the other: what has to come out of a load.

Everything is read first and every rule computes at once, with numpy. It shares no code with the
engine, which does neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from orbit_ckpt._src.tree.flatten import is_empty_node
from orbit_ckpt.errors import TransformError, TreeMismatchError, UnsupportedLeafError
from orbit_ckpt.transform import (
    AssignmentMap,
    Cast,
    Combine,
    Copy,
    Drop,
    Fallback,
    KeyData,
    Map,
    Rename,
    Rule,
    Split,
    Stack,
    Transpose,
    Unstack,
    WrapKeys,
)


class Refused(Exception):  # noqa: N818 - not raised by the library
    """The rules do not fit the leaves."""


@dataclass(frozen=True)
class Leaf:
    """A value and what is known of it.

    Attributes:
        value: The value; arrays of JAX as numpy's, unless a function made them.
        sources: Names of the stored leaves that it is made of.
        is_known: Whether shape and dtype are known before anything is read.
        is_stored: Whether it is a stored leaf, perhaps cast.
        is_cast: Whether it is one that was cast.
        sharding: Its sharding, of an array of JAX that is stored.
        from_jax: Whether some source was an array of JAX.
        error: What computing it raises.
        is_kept: Whether it is the target's own.
    """

    value: Any
    sources: frozenset[str] = frozenset()
    is_known: bool = False
    is_stored: bool = False
    is_cast: bool = False
    sharding: jax.sharding.Sharding | None = None
    from_jax: bool = False
    error: type[Exception] | None = None
    is_kept: bool = False

    @property
    def failure(self) -> type[Exception] | None:
        """What asking for it raises."""
        is_lost = self._is_placed and is_wide(self.value)
        return self.error or (UnsupportedLeafError if is_lost else None)

    @property
    def result(self) -> Any:
        """What a load without a target gives."""
        if not self._is_placed:
            return self.value
        return jax.device_put(self.value, self.sharding or jax.devices()[0])

    @property
    def _is_placed(self) -> bool:
        return self.from_jax and isinstance(self.value, np.ndarray)


def is_key(value: object) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic | jax.Array | int | float)


def is_wide(value: np.ndarray) -> bool:
    """Whether JAX cannot hold an array as it is."""
    return value.dtype.kind in "iuf" and value.dtype.itemsize > 4


def array(value: Any) -> Any:
    if not is_array(value):
        raise TypeError(value)
    return value if is_key(value) else np.asarray(value)


def stored_leaf(name: str, value: Any) -> Leaf:
    from_jax = isinstance(value, jax.Array)
    return Leaf(
        np.array(value) if from_jax and not is_key(value) else value,
        frozenset([name]),
        is_known=is_array(value),
        is_stored=True,
        sharding=value.sharding if from_jax else None,
        from_jax=from_jax,
    )


def cast(value: Any, dtype: Any) -> Any:
    if not is_array(value) or is_key(value):
        return value
    result = np.asarray(value).astype(dtype)
    if isinstance(value, np.ndarray | jax.Array):
        return result
    if isinstance(value, np.generic):
        return result[()]
    return (
        int(result)
        if result.dtype.kind in "iu"
        else bool(result)
        if dtype == "bool"
        else float(result)
    )


def loses(value: Any, dtype: Any) -> bool:
    """Whether a cast makes numbers other integers; fractions are not counted."""
    if not is_array(value) or is_key(value) or np.dtype(dtype).kind not in "iu":
        return False
    numbers = np.asarray(value).astype(np.float64).ravel().tolist()
    limits = np.iinfo(dtype)
    return any(not limits.min <= number <= limits.max for number in numbers)


@dataclass
class Groups:
    """What wildcards or groups matched."""

    numbered: Sequence[str | None]
    named: Mapping[str, str | None] = field(default_factory=dict)


def find_glob(
    pattern: Sequence[str], keys: Sequence[str], *, is_first: bool = True
) -> list[Any] | None:
    """Return what the wildcards of a pattern match, longest first; None if it does not match."""
    if not pattern:
        return None if keys else []
    head, *rest = pattern
    if head == "**":
        fewest = 1 if not rest and not is_first else 0
        for count in range(len(keys), fewest - 1, -1):
            found = find_glob(rest, keys[count:], is_first=False)
            if found is not None:
                return ["/".join(keys[:count]) if count else None, *found]
        return None
    if not keys:
        return None
    here = find_part(head, keys[0])
    after = None if here is None else find_glob(rest, keys[1:], is_first=False)
    return None if here is None or after is None else here + after


def find_part(pattern: str, key: str) -> list[str] | None:
    """Return what the wildcards within one key match."""
    head, star, rest = pattern.partition("*")
    if not key.startswith(head):
        return None
    key = key[len(head) :]
    if not star:
        return None if key else []
    for count in range(len(key), -1, -1):
        found = find_part(rest, key[count:])
        if found is not None:
            return [key[:count], *found]
    return None


def find(pattern: str | re.Pattern[str], names: Sequence[str]) -> dict[str, Groups]:
    found: dict[str, Groups] = {}
    for name in names:
        if isinstance(pattern, re.Pattern):
            match = pattern.fullmatch(name)
            if match is not None:
                found[name] = Groups(match.groups(), match.groupdict())
        else:
            values = find_glob(pattern.split("/"), name.split("/"))
            if values is not None:
                found[name] = Groups(values)
    return found


def fill(template: str, groups: Groups, **more: str) -> str:
    """Return a template with what was matched; what matched nothing takes its slash along."""
    named = {**groups.named, **more}
    text = ""
    while template:
        head, backslash, template = template.partition("\\")
        text += head
        if not backslash:
            break
        if template.startswith("g<"):
            reference, _, template = template[2:].partition(">")
            value = named[reference]
        else:
            reference = template[: len(template) - len(template.lstrip("0123456789"))]
            template = template[len(reference) :]
            value = groups.numbered[int(reference) - 1]
        text += value or ""
        template = template if value else template.removeprefix("/")
    return text


class Reference:
    """A tree of values by name."""

    def __init__(self, saved: Mapping[str, Any], target: Mapping[str, Any] | None) -> None:
        self.leaves = {name: stored_leaf(name, value) for name, value in saved.items()}
        self.target = target

    def apply(self, rule: Rule) -> None:
        """Apply a rule; refused rules leave the tree in any state."""
        match rule:
            case Rename() | Copy():
                found = self._find(rule)
                made = [(fill(rule.to, groups), self._get(name)) for name, groups in found.items()]
                self._replace(rule, found if isinstance(rule, Rename) else [], made)
            case Drop():
                for name in self._find(rule):
                    del self.leaves[name]
            case Fallback():
                for name in self._find(rule, self._target()):
                    self.leaves[name] = Leaf(self._target()[name], is_kept=True)
            case Combine():
                self._combine(rule)
            case Split():
                self._split(rule)
            case Stack():
                self._stack(rule)
            case Unstack():
                self._unstack(rule)
            case AssignmentMap():
                self._assign(rule)
            case _:
                for name in self._find_values(rule):
                    self.leaves[name] = one_to_one(rule, name, self._get(name))

    def _find(self, rule: Any, names: Mapping[str, object] | None = None) -> dict[str, Groups]:
        found = find(rule.pattern, list(self.leaves if names is None else names))
        if not found and not rule.allow_unused:
            raise Refused
        return found

    def _find_values(self, rule: Any) -> dict[str, Groups]:
        pattern = rule.inputs[0] if isinstance(rule, Combine) else rule.pattern
        found = find(pattern, list(self.leaves))
        found = {name: groups for name, groups in found.items() if not self._is_empty(name)}
        if not found and not rule.allow_unused:
            raise Refused
        return found

    def _is_empty(self, name: str) -> bool:
        leaf = self.leaves[name]
        return leaf.is_stored and is_empty_node(leaf.value)

    def _get(self, name: str) -> Leaf:
        if name not in self.leaves or self.leaves[name].is_kept:
            raise Refused
        return self.leaves[name]

    def _target(self) -> Mapping[str, Any]:
        if self.target is None:
            raise Refused
        return self.target

    def _replace(self, rule: Any, old: Any, made: Sequence[tuple[str, Leaf]]) -> None:
        for name in set(old):
            del self.leaves[name]
        names = [name for name, _ in made]
        if len(set(names)) < len(names) or (not rule.overwrite and self.leaves.keys() & set(names)):
            raise Refused
        self.leaves.update(made)

    def _combine(self, rule: Combine) -> None:
        others = rule.inputs[1:]
        found = self._find_values(rule)
        used: list[str] = []
        made: list[tuple[str, Leaf]] = []
        for name, groups in found.items():
            inputs = [name, *(fill(str(other), groups) for other in others)]
            used += inputs
            leaves = [self._get(each) for each in inputs]
            if any(map(self._is_empty, inputs)):
                raise Refused
            made.append((fill(rule.to, groups), compute(rule.fn, leaves, rule.on)))
        self._replace(rule, [] if rule.keep else used, made)

    def _split(self, rule: Split) -> None:
        count = len(rule.to)

        def cut(value: Any) -> Sequence[Any]:
            value = array(value)
            return (jnp if is_key(value) else np).split(value, count, rule.axis)

        def exactly(value: Any) -> Sequence[Any]:
            parts = (rule.fn or cut)(value)
            if len(parts) != count:
                raise ValueError(parts)
            return parts

        found = self._find_values(rule)
        made: list[tuple[str, Leaf]] = []
        for name, groups in found.items():
            old = self._get(name)
            on = rule.on if rule.fn else "numpy"
            parts = compute(exactly, [old], on, is_known=rule.fn is None)
            made += [(fill(to, groups), part_of(parts, i)) for i, to in enumerate(rule.to)]
        self._replace(rule, found, made)

    def _stack(self, rule: Stack) -> None:
        stacks: dict[str, dict[int, Leaf]] = {}
        found = self._find_values(rule)
        for name, groups in found.items():
            number = groups.numbered[rule.number - 1]
            members = stacks.setdefault(fill(rule.to, groups), {})
            if not (number or "").isdecimal() or int(number or "") in members:
                raise Refused
            members[int(number or "")] = self._get(name)
        made: list[tuple[str, Leaf]] = []
        for name, members in stacks.items():
            if sorted(members) != [*range(len(members))]:
                raise Refused
            made.append((name, stack([members[i] for i in sorted(members)], rule.axis)))
        self._replace(rule, found, made)

    def _unstack(self, rule: Unstack) -> None:
        found = self._find_values(rule)
        made: list[tuple[str, Leaf]] = []
        for name, groups in found.items():
            old = self._get(name)
            if not old.is_known:
                raise Refused

            def cut(value: Any) -> list[Any]:
                value = array(value)
                moved = (jnp if is_key(value) else np).moveaxis(value, rule.axis, 0)
                return [moved[i, ...] for i in range(len(moved))]

            parts = compute(cut, [old], is_known=True)
            count = np.shape(old.value)[rule.axis]
            made += [(fill(rule.to, groups, i=str(i)), part_of(parts, i)) for i in range(count)]
        self._replace(rule, found, made)

    def _assign(self, rule: AssignmentMap) -> None:
        unused = [*range(len(rule.pairs))]
        made: dict[str, Leaf] = {}
        taken: set[str] = set()
        for name, value in self._target().items():
            for i, (pattern, template) in enumerate(rule.pairs):
                groups = find(pattern, [name]).get(name)
                if groups is None:
                    continue
                unused = [j for j in unused if j != i]
                if template is None:
                    made[name] = Leaf(value, is_kept=True)
                else:
                    taken.add(fill(template, groups))
                    made[name] = self._get(fill(template, groups))
                break
        if unused and rule.require_all:
            raise Refused
        self.leaves = {n: leaf for n, leaf in self.leaves.items() if n not in taken} | made


def compute(
    fn: Callable[..., Any], inputs: Sequence[Leaf], on: str = "numpy", *, is_known: bool = False
) -> Leaf:
    """Return what a function makes; it fails now only if shapes are known before it is called."""
    result = Leaf(
        None,
        frozenset().union(*(leaf.sources for leaf in inputs)),
        is_known and all(leaf.is_known for leaf in inputs),
        from_jax=any(leaf.from_jax for leaf in inputs),
        error=next((leaf.error for leaf in inputs if leaf.error), None),
    )
    values: list[Any] = []
    for leaf in inputs:
        value = leaf.value
        if on == "jax" and isinstance(value, np.ndarray):
            if is_wide(value):
                return replace(result, error=result.error or UnsupportedLeafError)
            value = jnp.asarray(value)
        elif on == "numpy" and isinstance(value, jax.Array) and not is_key(value):
            value = np.asarray(value)
        values.append(np.array(value) if isinstance(value, np.ndarray) else value)
    try:
        return replace(result, value=fn(*values))
    except Exception:  # noqa: BLE001 - the functions of rules raise anything
        if result.is_known:
            raise Refused from None
        return replace(result, error=result.error or TransformError)


def part_of(parts: Leaf, index: int) -> Leaf:
    if parts.value is None:
        return parts
    part = parts.value[index]
    return replace(parts, value=np.array(part) if isinstance(part, np.ndarray) else part)


def stack(leaves: Sequence[Leaf], axis: int) -> Leaf:
    def kind(leaf: Leaf) -> object:
        value = array(leaf.value)
        return value.shape, value.dtype

    def run(*values: Any) -> Any:
        given = [array(value) for value in values]
        if any(value.shape != given[0].shape or value.dtype != given[0].dtype for value in given):
            raise ValueError
        return (jnp if is_key(given[0]) else np).stack(given, axis)

    known = [kind(leaf) for leaf in leaves if leaf.is_known]
    if any(other != known[0] for other in known):
        raise Refused
    return compute(run, leaves, is_known=True)


def one_to_one(rule: Rule, name: str, old: Leaf) -> Leaf:
    match rule:
        case Map():
            fn = (lambda value: rule.fn(value, name)) if rule.with_name else rule.fn
            return compute(fn, [old], rule.on)
        case Cast():
            if old.error is not None:
                return old
            is_stored = old.is_stored and not old.is_cast
            error = TreeMismatchError if is_stored else TransformError
            failed = error if loses(old.value, rule.dtype) else None
            stands = old.value
            if isinstance(stands, jax.Array) and not is_key(stands):
                stands = np.asarray(stands)
            value = cast(stands, rule.dtype)
            sharding = old.sharding if is_stored else None
            return replace(
                old, value=value, is_stored=is_stored, is_cast=True, sharding=sharding, error=failed
            )
        case Transpose():

            def turn(value: Any) -> Any:
                value = array(value)
                return (jnp if is_key(value) else np).transpose(value, rule.axes)

            return compute(turn, [old], is_known=True)
        case KeyData():
            return compute(jax.random.key_data, [old], "jax")
        case WrapKeys():
            return compute(
                lambda data: jax.random.wrap_key_data(data, impl=rule.impl), [old], "jax"
            )
        case _:
            raise AssertionError(rule)
