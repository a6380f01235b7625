"""Compare two sets of leaves: missing leaves, their nearest names, renamed leaves."""

from __future__ import annotations

import difflib
import heapq
import itertools
import re
from collections.abc import Hashable, Mapping, Sequence

from msgspec import Struct

from orbit_ckpt._src.tree.keypath import NamePath, format_path

_SHOWN = 20
_SEARCHED = 2000
_SEARCHES = 200
_NEAREST = 16
_REMEMBERED = 8
_CUTOFF = 0.5
"""How alike names must be if all else is equal."""


class TreeDifference(Struct, frozen=True):
    """The difference between a target and a checkpoint.

    Attributes:
        missing: Leaves of the target that the checkpoint lacks.
        unexpected: Leaves of the checkpoint that the target lacks.
        changed: Leaves of both that differ, with a sentence that says how.
        candidates: Leaves that a missing one may stand for; if empty, the unexpected ones.
    """

    missing: Sequence[NamePath]
    unexpected: Sequence[NamePath]
    changed: Mapping[NamePath, str]
    candidates: Sequence[NamePath] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.changed)

    @property
    def paths(self) -> tuple[str, ...]:
        """Names of all leaves that differ."""
        return tuple(map(format_path, (*self.missing, *self.unexpected, *self.changed)))

    def describe(self) -> str:
        """Return one line per leaf; long lists are shortened and say by how much."""
        missing = [self._missing_line(path) for path in self.missing[:_SHOWN]]
        unexpected = [format_path(path) for path in self.unexpected[:_SHOWN]]
        changed = [f"{format_path(path)}: {text}" for path, text in self.changed.items()]
        return "\n".join(
            [
                *_section("missing in the checkpoint", missing, len(self.missing)),
                *_section("in the checkpoint only", unexpected, len(self.unexpected)),
                *_section("different", changed[:_SHOWN], len(changed)),
            ]
        )

    def _missing_line(self, path: NamePath) -> str:
        candidates = self.candidates or self.unexpected
        near = nearest_names(format_path(path), [format_path(p) for p in candidates])
        return format_path(path) + (f" (nearest: {', '.join(near)})" if near else "")


def compare_names(target: Sequence[NamePath], source: Sequence[NamePath]) -> TreeDifference:
    """Return the paths that exist in only one of two trees, each list in its tree's order."""
    in_target, in_source = set(target), set(source)
    return TreeDifference(
        [path for path in target if path not in in_source],
        [path for path in source if path not in in_target],
        {},
    )


def nearest_names(name: str, candidates: Sequence[str], *, cutoff: float = 0.6) -> list[str]:
    """Return up to two candidates spelt most like `name`, with a similarity of at least `cutoff`.

    Considers a limited number of candidates: a search for a message must not take minutes on a tree
    of 50,000 leaves.
    """
    return difflib.get_close_matches(name, candidates[:_SEARCHED], n=2, cutoff=cutoff)


def match_renamed(
    removed: Mapping[NamePath, Hashable], added: Mapping[NamePath, Hashable]
) -> dict[NamePath, NamePath]:
    """Pair leaves of one tree with leaves of another that are likely the same under a new name.

    Of equal leaves the one with the nearest name is chosen, each once. Most leaves are renamed in
    the same way: the edit of one name is tried on the next before any search, and the number of
    searches is limited.

    Args:
        removed: Leaves that only the first tree has, with what must be equal in both.
        added: Leaves that only the second tree has.
    """
    alike: dict[Hashable, dict[str, NamePath]] = {}
    for path, signature in added.items():
        alike.setdefault(signature, {})[format_path(path)] = path
    pairs: dict[NamePath, NamePath] = {}
    edits: list[_Edit] = []
    searches = 0
    for path, signature in removed.items():
        candidates = alike.get(signature)
        if not candidates:
            continue
        name = format_path(path)
        found = next((new for edit in edits if (new := edit.apply(name)) in candidates), None)
        if found is None and searches < _SEARCHES:
            searches += 1
            found = _nearest_path(name, path, candidates)
            if found is not None:
                edits = [_Edit.between(name, found), *edits[: _REMEMBERED - 1]]
        if found is not None:
            pairs[path] = candidates.pop(found)
    return pairs


def _nearest_path(name: str, path: NamePath, candidates: Mapping[str, NamePath]) -> str | None:
    """Return the candidate spelt most like a name, among those that share most keys with it."""
    keys = frozenset(path)
    searched = itertools.islice(candidates.items(), _SEARCHED)
    near = heapq.nlargest(_NEAREST, searched, key=lambda item: len(keys.intersection(item[1])))
    names = nearest_names(name, [candidate for candidate, _ in near], cutoff=_CUTOFF)
    return names[0] if names else None


class _Edit(Struct, frozen=True):
    """The edit that turns one name into another.

    Attributes:
        before: The unchanged text in front of it.
        old: The text replaced, whole words and numbers; empty for an insertion.
        new: The replacement.
    """

    before: str
    old: str
    new: str

    @classmethod
    def between(cls, old: str, new: str) -> _Edit:
        """Return the smallest edit that turns one name into another."""
        a, b = _WORDS.findall(old), _WORDS.findall(new)
        shorter = min(len(a), len(b))
        first = next((i for i in range(shorter) if a[i] != b[i]), shorter)
        rest = shorter - first
        last = next((i for i in range(rest) if a[-1 - i] != b[-1 - i]), rest)
        return cls(
            "".join(a[:first]), "".join(a[first : len(a) - last]), "".join(b[first : len(b) - last])
        )

    def apply(self, name: str) -> str:
        """Apply the edit to a name; return it unchanged if the edit does not fit."""
        if self.old:
            return name.replace(self.old, self.new, 1)
        if not name.startswith(self.before):
            return name
        return f"{self.before}{self.new}{name[len(self.before) :]}"


_WORDS = re.compile(r"\d+|[^\W\d_]+|.", re.DOTALL)


def _section(title: str, lines: Sequence[str], total: int) -> list[str]:
    if not lines:
        return []
    rest = [f"    ... and {total - len(lines)} more"] if total > len(lines) else []
    return [f"  {title}:", *(f"    {line}" for line in lines), *rest]
