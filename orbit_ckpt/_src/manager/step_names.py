"""Names of steps, under the names of Orbax's `step` module."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

from typing_extensions import override

from orbit_ckpt._src.checkpointer.options import AtomicityOptions
from orbit_ckpt._src.checkpointer.temporary_path import TemporaryPath
from orbit_ckpt._src.checkpointer.unfinished import options_of
from orbit_ckpt._src.errors import StepNotFoundError
from orbit_ckpt._src.manager.steps import (
    FoundStep,
    StepNames,
    StepParser,
    StepRecord,
    as_step,
    list_steps,
)
from orbit_ckpt._src.runtime.checks import check_elements, check_int, check_methods, check_type
from orbit_ckpt._src.storage.layout import TEMPORARY_SUFFIX
from orbit_ckpt._src.storage.path import PathLike, describe_directory, resolve_path
from orbit_ckpt._src.text import warn_set

FoundT = TypeVar("FoundT", bound=FoundStep)
FoundT_co = TypeVar("FoundT_co", bound=FoundStep, covariant=True)

_DIGITS = re.compile("[0-9]+")
_FORMATS = "Give StepNameFormat('step'), for example."


@runtime_checkable
class NameFormat(Protocol[FoundT_co]):
    """Names steps, and finds them by their names."""

    def build_name(self, step: int) -> str:
        """Return the name of a step's directory."""
        ...

    @abstractmethod
    def find_all(self, base_path: Any) -> Iterator[FoundT_co]:
        """Return the committed steps of a run."""
        ...

    @abstractmethod
    def find_step(self, base_path: Any, step: int) -> FoundT_co:
        """Return a committed step of a run.

        Raises:
            ValueError: The step does not exist.
        """
        ...


@dataclass(frozen=True, slots=True)
class StepNameFormat(NameFormat[StepRecord], StepParser):
    """Names of steps: an optional prefix, then the number.

    Orbax's names are `7`, `0007`, `step_7` and `step_0007`. T5X's `checkpoint_7` has the prefix
    `checkpoint`; `run-10` has the prefix `run` and the separator `-`.

    Attributes:
        prefix: First part of the name, followed by the separator; None for the number alone.
        fixed_length: Least number of digits, padded with zeros.
        separator: The text between prefix and number.
        needs_marker: Whether `find_all` and `find_step` ignore directories without a commit marker;
            a manager decides that by its `atomicity_options`.
    """

    prefix: str | None = None
    fixed_length: int | None = None
    separator: str = "_"
    needs_marker: bool = False

    def __post_init__(self) -> None:
        check_type("prefix", self.prefix, str, "a str", "Give StepNameFormat('checkpoint').")
        check_int("fixed_length", self.fixed_length, least=0, optional=True)
        if "/" in self._start or "\0" in self._start or TEMPORARY_SUFFIX in self._start:
            raise ValueError(
                f"Step names that begin with {self._start!r} cannot be found again; give a prefix "
                f"without slashes and without {TEMPORARY_SUFFIX!r}."
            )

    @property
    def _start(self) -> str:
        return "" if self.prefix is None else f"{self.prefix}{self.separator}"

    @override
    def build_name(self, step: int) -> str:
        """Return the name of a step's directory.

        Raises:
            ValueError: The step is negative.
            TypeError: The step is not an integer.
        """
        return f"{self._start}{as_step(step):0{self.fixed_length or 0}d}"

    @override
    def parse(self, name: str) -> int | None:
        """Return the step that a name denotes, None if it denotes none.

        Names with other padding than `fixed_length` are accepted, so that a run keeps its earlier
        steps when the padding changes.
        """
        if not name.startswith(self._start):
            return None
        digits = name[len(self._start) :]
        return int(digits) if _DIGITS.fullmatch(digits) else None

    @override
    def find_all(self, base_path: PathLike) -> Iterator[StepRecord]:
        """Return the committed steps of a run, ascending.

        Raises:
            StorageError: A directory cannot be read.
        """
        return iter(list_steps(resolve_path(base_path), self, needs_marker=self.needs_marker))

    @override
    def find_step(self, base_path: PathLike, step: int) -> StepRecord:
        """Return a committed step of a run.

        Raises:
            StepNotFoundError: The step does not exist.
        """
        return only_step(self.find_all(base_path), step, base_path)


def standard_name_format(
    *,
    step_prefix: str | None = None,
    step_format_fixed_length: int | None = None,
    single_host_load_and_broadcast: bool = False,
    temporary_path_cls: type[TemporaryPath] | None = None,
    atomicity_options: AtomicityOptions | None = None,
) -> StepNameFormat:
    """Return Orbax's step names: `7`, `0007`, `prefix_7` or `prefix_0007`.

    Args:
        step_prefix: The prefix, without the underscore.
        step_format_fixed_length: Number of digits.
        single_host_load_and_broadcast: Ignored.
        temporary_path_cls: How steps become visible, as an alternative to the next one.
        atomicity_options: In marker mode, a directory without a marker is not a step.
    """
    why = "the primary process of a manager always lists steps for all"
    given = single_host_load_and_broadcast
    warn_set("standard_name_format", {"single_host_load_and_broadcast": (given, False, why)})
    options = options_of("standard_name_format", temporary_path_cls, atomicity_options)
    return StepNameFormat(step_prefix, step_format_fixed_length, needs_marker=options.needs_marker)


@dataclass(frozen=True)
class CompositeNameFormat(NameFormat[FoundStep]):
    """Names new steps in one way and finds steps named in several ways.

    Attributes:
        write_name_format: Names new steps.
        read_name_formats: Find steps, the preferred format first; include `write_name_format`.
    """

    write_name_format: StepNames
    read_name_formats: Sequence[StepNames]

    def __post_init__(self) -> None:
        check_methods("write_name_format", self.write_name_format, ["build_name"], _FORMATS)
        check_elements("read_name_formats", self.read_name_formats, ["build_name"], _FORMATS)
        if self.write_name_format not in self.read_name_formats:
            raise ValueError(
                f"write_name_format {self.write_name_format!r} is not one of read_name_formats "
                f"{list(self.read_name_formats)!r}, so that no step saved would be found again. "
                "Add it there."
            )

    @override
    def build_name(self, step: int) -> str:
        """Return the name of a new step's directory."""
        return self.write_name_format.build_name(step)

    @override
    def find_all(self, base_path: PathLike) -> Iterator[FoundStep]:
        """Yield the committed steps of a run, those with preferred names first."""
        found: set[str] = set()
        for names in self.read_name_formats:
            for one in found_steps(base_path, names):
                if str(one.path) not in found:
                    found.add(str(one.path))
                    yield one

    @override
    def find_step(self, base_path: PathLike, step: int) -> FoundStep:
        """Return a committed step; of several with its number, the one with the preferred name.

        Raises:
            StepNotFoundError: The step does not exist.
        """
        return only_step(self.find_all(base_path), step, base_path)


class _ParsedNames(CompositeNameFormat, StepParser):
    """A `CompositeNameFormat` of formats that parse names."""

    @override
    def parse(self, name: str) -> int | None:
        """Return the step that a name denotes in the first format that accepts it."""
        parsers = (one for one in self.read_name_formats if isinstance(one, StepParser))
        return next((step for one in parsers if (step := one.parse(name)) is not None), None)


def composite_name_format(
    write_name_format: StepNames, read_name_formats: Sequence[StepNames]
) -> CompositeNameFormat:
    """Return names for a run whose earlier steps have other names.

    Args:
        write_name_format: Names new steps.
        read_name_formats: Find steps, the preferred format first; include `write_name_format`.

    Raises:
        ValueError: `write_name_format` is not one of `read_name_formats`.
    """
    can_parse = all(isinstance(names, StepParser) for names in read_name_formats)
    kind = _ParsedNames if can_parse else CompositeNameFormat
    return kind(write_name_format, read_name_formats)


def is_standard_name_format(name_format: object) -> TypeGuard[StepNameFormat]:
    """Return whether a format is a `StepNameFormat`."""
    return isinstance(name_format, StepNameFormat)


def single_host_load_and_broadcast_name_format(name_format: object) -> StepNameFormat:
    """Return a `StepNameFormat` unchanged: a manager's primary process always lists steps for all.

    Raises:
        ValueError: It is another format.
    """
    if is_standard_name_format(name_format):
        return name_format
    raise ValueError(
        f"single_host_load_and_broadcast is for standard name formats, found {name_format!r}. "
        "Give standard_name_format(...)."
    )


def found_steps(root: PathLike, names: StepNames) -> Iterator[FoundStep]:
    """Return the committed steps that a format finds, or whose names it parses."""
    find_all = getattr(names, "find_all", None)
    return iter(find_all(root) if find_all else list_steps(resolve_path(root), names))


def only_step(steps: Iterator[FoundT], number: int, root: PathLike) -> FoundT:
    """Return the first step of a number.

    Raises:
        StepNotFoundError: There is none.
    """
    for found in steps:
        if found.step == number:
            return found
    path = resolve_path(root)
    raise StepNotFoundError(f"There is no step {number} in {path}: {describe_directory(path)}.")
