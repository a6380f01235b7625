"""Say how two sets of leaves differ, with the nearest names of those that are missing."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from msgspec import Struct

from orbit_ckpt.tree.keypath import NamePath, format_path

_SHOWN = 20
_SEARCHED = 2000


class TreeDifference(Struct, frozen=True):
    """What a target asks for against what a checkpoint has.

    Attributes:
        missing: Leaves of the target that the checkpoint lacks.
        unexpected: Leaves of the checkpoint that the target lacks.
        changed: Leaves of both that differ, with a sentence that says how.
        candidates: Leaves that may be meant by a missing one; those that are unexpected if empty.
    """

    missing: Sequence[NamePath]
    unexpected: Sequence[NamePath]
    changed: Mapping[NamePath, str]
    candidates: Sequence[NamePath] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.changed)

    @property
    def paths(self) -> tuple[str, ...]:
        """Key paths of all leaves that differ."""
        return tuple(map(format_path, (*self.missing, *self.unexpected, *self.changed)))

    def describe(self) -> str:
        """Return one line per leaf; long lists are cut and say how much was cut."""
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
    """Return which paths are in one of two trees only, each list in its tree's order."""
    in_target, in_source = set(target), set(source)
    return TreeDifference(
        [path for path in target if path not in in_source],
        [path for path in source if path not in in_target],
        {},
    )


def nearest_names(name: str, candidates: Sequence[str]) -> list[str]:
    """Return up to two candidates spelt most like `name`.

    Looks at no more than a fixed number of candidates: the search is for a message, and must
    not take minutes on a tree of 50,000 leaves.
    """
    return difflib.get_close_matches(name, candidates[:_SEARCHED], n=2, cutoff=0.6)


def _section(title: str, lines: Sequence[str], total: int) -> list[str]:
    if not lines:
        return []
    rest = [f"    ... and {total - len(lines)} more"] if total > len(lines) else []
    return [f"  {title}:", *(f"    {line}" for line in lines), *rest]
