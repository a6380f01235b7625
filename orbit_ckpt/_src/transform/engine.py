"""Apply rules to the names of a checkpoint's leaves; nothing is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import assert_never

from orbit_ckpt._src.arrays.dtypes import as_dtype, is_prng_dtype
from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.transform import arrays
from orbit_ckpt._src.transform.nodes import UNKNOWN, Apply, ArrayInfo, FromTarget, Node, Part, Read
from orbit_ckpt._src.transform.patterns import (
    Pattern,
    compile_pattern,
    expand,
    is_exact,
    join_name,
    names_by_text,
    pattern_text,
)
from orbit_ckpt._src.transform.rules import (
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
    StateTransform,
    Transpose,
    Unstack,
    WrapKeys,
)
from orbit_ckpt._src.transform.state import restructure
from orbit_ckpt._src.tree.diff import nearest_names
from orbit_ckpt._src.tree.keypath import NamePath

_SHOWN = 20


def apply_rules(
    rules: Sequence[Rule],
    sources: Mapping[NamePath, ArrayInfo],
    target: Mapping[NamePath, object] | None = None,
    empty: Collection[NamePath] = (),
) -> dict[str, Node]:
    """Return how each leaf of the result comes about, by its name.

    Args:
        rules: In the order in which to apply them.
        sources: What is known of every leaf, by its names.
        target: The target's leaves by their names, None if there is none.
        empty: Which leaves are empty containers or None; they are moved, but nothing is computed
            from them.

    Raises:
        TransformError: A rule matches nothing, two leaves get one name, inputs are missing, or the
            shapes of inputs do not fit.
    """
    tree = _Tree(sources, target, empty)
    for rule in rules:
        tree.apply(rule)
    return tree.nodes


class _Tree:
    """Leaves by name while rules are applied one after the other."""

    def __init__(
        self,
        sources: Mapping[NamePath, ArrayInfo],
        target: Mapping[NamePath, object] | None,
        empty: Collection[NamePath],
    ) -> None:
        self.nodes: dict[str, Node] = {}
        self._target = None if target is None else [join_name(names) for names in target]
        self._target_values = target or {}
        self._rule: object = None
        for name, names in names_by_text(sources, "rules").items():
            self.nodes[name] = Read(names, sources[names], is_empty=names in empty)

    def apply(self, rule: Rule) -> None:
        """Apply one rule."""
        self._rule = rule
        match rule:
            case Rename() | Copy():
                self._rename(rule, keep=isinstance(rule, Copy))
            case Drop():
                for name, _ in self._matches(rule.pattern, rule.allow_unused):
                    del self.nodes[name]
            case Fallback():
                self._fall_back(rule)
            case Map() | Transpose() | Cast() | KeyData() | WrapKeys():
                self._replace(rule)
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
            case StateTransform():
                self.nodes = restructure(
                    rule.fn, self.nodes, self._target_values, is_resuming=rule.is_resuming
                )
            case _:  # pyright: ignore[reportUnnecessaryComparison] - a user's value
                raise TypeError(
                    f"{rule!r} is no rule; give those of orbit_ckpt.transform. Transforms of "
                    "Orbax go into PyTreeRestore(transforms=)."
                )

    def _matches(
        self, pattern: Pattern, allow_unused: bool, names: Sequence[str] | None = None
    ) -> list[tuple[str, re.Match[str]]]:
        """Return the leaves that a pattern matches."""
        compiled = compile_pattern(pattern)
        known = self.nodes if names is None else names
        if is_exact(pattern) and names is None:
            known = [name for name in (str(pattern),) if name in self.nodes]
        found = [(name, match) for name in known if (match := compiled.fullmatch(name))]
        if not found and not allow_unused:
            known = list(self.nodes) if names is None else names
            whose = "" if names is None else " of the target"
            raise self._error(f"matches none of {len(known)} leaves{whose}{_near(pattern, known)}")
        return found

    def _values(self, rule: ToValues) -> list[tuple[str, re.Match[str]]]:
        """Return the leaves to compute with that a rule's pattern matches."""
        pattern = rule.inputs[0] if isinstance(rule, Combine) else rule.pattern
        found = [
            (name, match)
            for name, match in self._matches(pattern, rule.allow_unused)
            if not _is_empty(self.nodes[name])
        ]
        if not found and not rule.allow_unused:
            raise self._error("matches only empty containers")
        return found

    def _node(self, name: str) -> Node:
        """Return a leaf of the checkpoint."""
        node = self.nodes[name]
        if isinstance(node, FromTarget):
            raise self._error(
                f"uses {name}, which an earlier rule takes from the target. Put that rule behind "
                "this one, or change the target itself"
            )
        return node

    def _take(self, name: str) -> Node:
        node = self._node(name)
        del self.nodes[name]
        return node

    def _put(self, made: Sequence[tuple[str, Node]], *, overwrite: bool) -> None:
        """Add leaves, which must not have the name of another one."""
        seen: set[str] = set()
        for name, _ in made:
            if name in seen:
                raise self._error(f"gives two leaves the name {name}")
            if name in self.nodes and not overwrite:
                raise self._error(
                    f"gives a leaf the name {name}, which another has. Drop or rename that one "
                    "first, or set overwrite=True"
                )
            seen.add(name)
        self.nodes.update(made)

    def _replace(self, rule: OneToOne) -> None:
        for name, _ in self._values(rule):
            self.nodes[name] = self._checked(name, _replaced, rule, name, self._node(name))

    def _rename(self, rule: Rename | Copy, *, keep: bool) -> None:
        found = self._matches(rule.pattern, rule.allow_unused)
        made = [(expand(rule.to, match), self._node(name)) for name, match in found]
        if not keep:
            for name, _ in found:
                del self.nodes[name]
        self._put(made, overwrite=rule.overwrite)

    def _fall_back(self, rule: Fallback) -> None:
        if self._target is None:
            raise self._error("takes leaves from the target, but there is none; give like=")
        for name, _ in self._matches(rule.pattern, rule.allow_unused, self._target):
            self.nodes[name] = FromTarget()

    def _combine(self, rule: Combine) -> None:
        made: list[tuple[str, Node]] = []
        used: dict[str, None] = {}
        for name, match in self._values(rule):
            inputs = [name, *(expand(str(template), match) for template in rule.inputs[1:])]
            missing = [e for e in inputs if e not in self.nodes or _is_empty(self.nodes[e])]
            if missing:
                raise self._error(f"needs {', '.join(missing)} for {name}; there is no such leaf")
            nodes = tuple(map(self._node, inputs))
            node = Apply("combine", rule.fn, nodes, on_jax=rule.on == "jax")
            made.append((expand(rule.to, match), node))
            used.update(dict.fromkeys(inputs))
        if not rule.keep:
            for name in used:
                del self.nodes[name]
        self._put(made, overwrite=rule.overwrite)

    def _split(self, rule: Split) -> None:
        made: list[tuple[str, Node]] = []
        for name, match in self._values(rule):
            node = self._take(name)
            count = len(rule.to)
            fn = rule.fn or partial(arrays.split, count=count, axis=rule.axis)
            info = UNKNOWN if rule.fn else self._checked(name, arrays.split_info, node.info, rule)
            on_jax = rule.fn is not None and rule.on == "jax"
            cut = partial(_exactly, fn, count, name)
            parts = Apply("split", cut, (node,), on_jax=on_jax, is_cut=rule.fn is None)
            made += [
                (expand(template, match), Part(parts, index, info))
                for index, template in enumerate(rule.to)
            ]
        self._put(made, overwrite=rule.overwrite)

    def _stack(self, rule: Stack) -> None:
        groups: dict[str, dict[int, str]] = {}
        for name, match in self._values(rule):
            number = match.group(rule.number) or ""
            if not number.isdecimal():
                raise self._error(
                    f"needs a number in {name}, found {number!r}. Say with number= which wildcard "
                    r"it is, or match less: re.compile(r'layers_(\d+)/(.*)')"
                )
            members = groups.setdefault(expand(rule.to, match), {})
            if int(number) in members:
                raise self._error(f"would stack {members[int(number)]} and {name} at one place")
            members[int(number)] = name
        made: list[tuple[str, Node]] = []
        for stacked, members in groups.items():
            numbers = range(rule.first, rule.first + len(members))
            gaps = [number for number in numbers if number not in members]
            if gaps:
                raise self._error(
                    f"finds no number {gaps[0]} for {stacked}, but {', '.join(members.values())}"
                )
            nodes = tuple(self._take(members[number]) for number in numbers)
            infos = [node.info for node in nodes]
            info = self._checked(stacked, arrays.stack_info, infos, rule.axis)
            fn = partial(arrays.stack, axis=rule.axis)
            made.append((stacked, Apply("stack", fn, nodes, info, stack_axis=rule.axis)))
        self._put(made, overwrite=rule.overwrite)

    def _unstack(self, rule: Unstack) -> None:
        made: list[tuple[str, Node]] = []
        for name, match in self._values(rule):
            node = self._take(name)
            count, info = self._checked(name, arrays.unstack_info, node.info, rule.axis)
            parts = Apply("unstack", partial(arrays.unstack, axis=rule.axis), (node,), is_cut=True)
            made += [
                (expand(rule.to.replace(r"\g<i>", str(index)), match), Part(parts, index, info))
                for index in range(count)
            ]
        self._put(made, overwrite=rule.overwrite)

    def _assign(self, rule: AssignmentMap) -> None:
        if self._target is None:
            raise self._error(
                "assigns leaves to those of the target, but there is none; give like="
            )
        pairs = [(compile_pattern(pattern), template) for pattern, template in rule.pairs]
        unused = set(range(len(pairs)))
        made: dict[str, Node] = {}
        taken: set[str] = set()
        for name in self._target:
            hit = next(
                ((i, m, t) for i, (p, t) in enumerate(pairs) if (m := p.fullmatch(name))), None
            )
            if hit is None:
                continue
            unused.discard(hit[0])
            if hit[2] is None:
                made[name] = FromTarget()
                continue
            old = expand(hit[2], hit[1])
            if old not in self.nodes:
                known = ", ".join(list(self.nodes)[:_SHOWN])
                raise self._error(
                    f"Parameter '{old}' does not exist in restore checkpoint. Must be one of: "
                    f"{known}"
                )
            made[name] = self._node(old)
            taken.add(old)
        if unused and rule.require_all:
            patterns = [pattern_text(rule.pairs[index][0]) for index in sorted(unused)]
            raise self._error(f"Unused patterns in `assignment_map`: {patterns}")
        for name in taken:
            del self.nodes[name]
        self.nodes.update(made)

    def _checked(self, name: str, infer: Callable[..., arrays.T], *args: object) -> arrays.T:
        try:
            return infer(*args)
        except ValueError as error:
            raise self._error(f"cannot be applied to {name}: {error}") from error

    def _error(self, what: str) -> TransformError:
        return TransformError(f"{self._rule}: {what}{'' if what.endswith('?') else '.'}")


def _near(pattern: Pattern, known: Sequence[str]) -> str:
    """Return what the one who wrote a pattern that matches nothing may want to know."""
    if is_exact(pattern):
        if any(name.startswith(f"{pattern}/") for name in known):
            return f"; what is below is {pattern}/**"
        near = nearest_names(str(pattern), known)
        if near:
            return f"; did you mean {' or '.join(near)}?"
    return f": {', '.join(known[:_SHOWN])}. Set allow_unused=True if that is meant"


OneToOne = Map | Transpose | Cast | KeyData | WrapKeys
ToValues = OneToOne | Combine | Split | Stack | Unstack


def _is_empty(node: Node) -> bool:
    return isinstance(node, Read) and node.is_empty


def _replaced(rule: OneToOne, name: str, node: Node) -> Node:
    """Return what a rule for single leaves makes of one."""
    match rule:
        case Map():
            fn = partial(_call_with_name, rule.fn, name) if rule.with_name else rule.fn
            return Apply("map", fn, (node,), on_jax=rule.on == "jax")
        case Transpose():
            info = arrays.transpose_info(node.info, rule.axes)
            return Apply("transpose", partial(arrays.transpose, axes=rule.axes), (node,), info)
        case Cast():
            return _cast(node, rule.dtype)
        case KeyData():
            return Apply("key data", arrays.key_data, (node,), on_jax=True)
        case WrapKeys():
            wrap = partial(arrays.wrap_keys, impl=rule.impl)
            return Apply("wrap keys", wrap, (node,), on_jax=True)
        case _:
            assert_never(rule)


def _cast(node: Node, dtype: object) -> Node:
    if is_prng_dtype(node.info.dtype):
        return node
    info = arrays.cast_info(node.info, dtype)
    if isinstance(node, Read) and node.dtype is None:
        return Read(node.names, info, as_dtype(dtype))
    return Apply("cast", partial(arrays.cast, dtype=dtype), (node,), info)


def _call_with_name(fn: Callable[..., object], name: str, value: object) -> object:
    return fn(value, name)


def _exactly(
    fn: Callable[[object], Sequence[object]], count: int, name: str, value: object
) -> Sequence[object]:
    parts = fn(value)
    if len(parts) != count:
        raise TransformError(
            f"Split of {name}: the function returned {len(parts)} values, not {count}."
        )
    return parts
