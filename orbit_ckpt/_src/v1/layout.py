"""Identify a checkpoint and its checkpointables, as Orbax's v1 API does."""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    IncompleteCheckpointError,
)
from orbit_ckpt._src.formats.locate import Kind, locate
from orbit_ckpt._src.formats.orbax.layout import find_items
from orbit_ckpt._src.metadata.files import read_step
from orbit_ckpt._src.metadata.schema import StepDocument
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.inner_path import inner_file, is_inner_name
from orbit_ckpt._src.storage.integrity import open_checked
from orbit_ckpt._src.storage.layout import STEP_METADATA, TREE_METADATA
from orbit_ckpt._src.storage.path import PathLike, describe_directory, resolve_path
from orbit_ckpt._src.v1.context import Context
from orbit_ckpt._src.v1.deletion_record import pending_deletion
from orbit_ckpt._src.v1.errors import (
    DeletionInProgressError,
    IncompleteLayoutError,
    InvalidLayoutError,
    MissingLayoutError,
)
from orbit_ckpt._src.v1.handlers import METRICS, STATE
from orbit_ckpt._src.v1.options import CheckpointLayout

_logger = logging.getLogger(__name__)

AUTO = "AUTO"
"""The name with which `load` finds the state itself."""

INDICATOR = "orbax.checkpoint"
"""The file that marks a checkpoint of the v1 API."""

_RESERVED = frozenset({METRICS, AUTO})
_ADVICE = "Give a checkpoint's own directory; set context.checkpoint_layout = 'auto' for others."


def check_name(name: object, reserved: Collection[str]) -> None:
    """Check that a value can be the name of a checkpointable.

    Raises:
        ValueError: It cannot.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(
            f"The name of a checkpointable must be a str that is not empty, found {show(name)}."
        )
    if name in reserved or "/" in name or not is_inner_name(name):
        what = "is reserved" if name in reserved else "is no name of a directory"
        raise ValueError(f"{name!r} cannot be the name of a checkpointable: it {what}.")


class Checkpoint(Struct, frozen=True):
    """A checkpoint to load.

    Attributes:
        path: Where it is.
        document: What it records about itself.
        is_v1: Whether the v1 API has written it.
        is_foreign: Whether it is of another program's format.
        deleting: The checkpointable that is being deleted, if any.
    """

    path: Path
    document: StepDocument = StepDocument()
    is_v1: bool = False
    is_foreign: bool = False
    deleting: str | None = None

    @property
    def names(self) -> list[str]:
        """Names of its checkpointables, the state first; not the metrics."""
        found = sorted(set(self.existing) - _RESERVED - {self.deleting})
        return sorted(found, key=lambda name: name != STATE)

    @property
    def existing(self) -> list[str]:
        """Names of its checkpointables and of the metrics."""
        return [name for name in find_items(self.path) if name != self.deleting]

    @property
    def is_flat(self) -> bool:
        """Whether it is one tree without a name, or another program's."""
        if self.is_foreign or isinstance(self.document.item_handlers, str):
            return True
        return not self.is_v1 and (self.path / TREE_METADATA).is_file()

    def typestr_of(self, name: str | None) -> str | None:
        """Return the recorded name of the handler that wrote a checkpointable."""
        recorded = self.document.item_handlers
        if isinstance(recorded, str) or recorded is None:
            return recorded if name is None and isinstance(recorded, str) else None
        return recorded.get(name) if name is not None else None

    def place_of(self, name: str | None) -> Path:
        """Return the directory of a checkpointable; None is the whole checkpoint."""
        return self.path if name is None else inner_file(self.path, name)

    def check_not_deleting(self, name: str) -> None:
        """Check that a checkpointable is not being deleted.

        Raises:
            DeletionInProgressError: It is.
        """
        if name == self.deleting:
            raise DeletionInProgressError(
                f"{self.path}: {name!r} is being deleted and cannot be read. Delete it again to "
                "finish that."
            )

    def state_name(self, name: str | None) -> str | None:
        """Return the name of the state to load; None if the checkpoint itself is the tree.

        Args:
            name: The name that the caller gives, None for a checkpoint without names, or AUTO.

        Raises:
            InvalidLayoutError: There is no such tree.
        """
        if self.is_foreign:
            return None
        if name == AUTO:
            return self._auto_name()
        if name is None:
            if not self.is_v1 and self.is_flat:
                return None
            raise self._no_tree("checkpointable_name=None is for a checkpoint without names")
        self.check_not_deleting(name)
        if not self.holds_tree(name):
            raise self._no_tree(f"there is no tree {name!r}")
        return name

    def _auto_name(self) -> str | None:
        if not self.is_v1 and self.is_flat:
            return None
        trees = [name for name in self.names if self.holds_tree(name)]
        if trees:
            if trees[0] != STATE:
                _logger.info("%s: loading %r as the state", self.path, trees[0])
            return trees[0]
        if not self.is_v1 and locate(self.path).tree == self.path:  # of an early release
            return None
        raise self._no_tree("there is no tree")

    def holds_tree(self, name: str) -> bool:
        """Return whether a checkpointable is a tree, by its files."""
        path = inner_file(self.path, name)
        return (path / TREE_METADATA).is_file() or (
            not self.is_v1 and path.is_dir() and locate(path).tree is not None
        )

    def _no_tree(self, problem: str) -> InvalidLayoutError:
        trees = [name for name in self.names if self.holds_tree(name)]
        if trees:
            hint = f"Its trees are {trees}; give one of these as checkpointable_name."
        elif self.is_flat:
            hint = "It is a tree without a name; give checkpointable_name=None."
        elif self.names:
            hint = f"Its checkpointables are {self.names}; call load_checkpointables."
        else:
            hint = f"There {describe_directory(self.path)}."
        return InvalidLayoutError(f"{self.path}: {problem}. {hint}")


def open_checkpoint(path: PathLike, context: Context) -> Checkpoint:
    """Identify the checkpoint at a path.

    Raises:
        InvalidLayoutError: There is none of the layout that the context names.
    """
    place = resolve_path(path)
    with _layout_errors():
        if context.checkpoint_layout is CheckpointLayout.SAFETENSORS:
            return Checkpoint(place, is_foreign=True)
        located = locate(place)
        if context.checkpoint_layout is CheckpointLayout.AUTO and located.kind is Kind.FOREIGN:
            return Checkpoint(place, is_foreign=True)
        directory_of(place).check_complete(needs_marker=context.session().atomicity.needs_marker)
        is_v1 = (place / INDICATOR).is_file()
        if is_v1:
            _check_v1(place)
        else:
            _check_v0(place, located.kind)
        return Checkpoint(
            place,
            read_step(open_checked(place)),
            is_v1,
            deleting=pending_deletion(place),
        )


def _check_v1(path: Path) -> None:
    """Check that a checkpoint of the v1 API says which handlers wrote it.

    Raises:
        InvalidLayoutError: It does not.
    """
    if not (path / STEP_METADATA).is_file():
        raise InvalidLayoutError(
            f"{path}: the file {STEP_METADATA} is missing, which says what the checkpointables "
            "are. Was the checkpoint copied completely? orbit_ckpt.load reads a tree without it."
        )


def _check_v0(path: Path, kind: Kind) -> None:
    """Check that a path without the mark of the v1 API is a whole checkpoint.

    Raises:
        InvalidLayoutError: It is an item of one, a run, or something else.
    """
    if (path.parent / STEP_METADATA).is_file() and not (path / STEP_METADATA).is_file():
        raise InvalidLayoutError(
            f"{path} is one checkpointable of the checkpoint {path.parent}. Load from that, with "
            f"checkpointable_name={path.name!r}."
        )
    if kind is Kind.CHECKPOINT or (path / STEP_METADATA).is_file():
        return
    if kind is Kind.RUN:
        raise InvalidLayoutError(f"{path} is a run with several checkpoints. Give one of them.")
    raise InvalidLayoutError(f"No checkpoint at {path}: {describe_directory(path)}. {_ADVICE}")


@contextmanager
def _layout_errors() -> Generator[None]:
    """Convert errors about what exists at a path to those of the v1 API."""
    try:
        yield
    except InvalidLayoutError:
        raise
    except CheckpointNotFoundError as error:
        raise MissingLayoutError(str(error)) from error
    except IncompleteCheckpointError as error:
        raise IncompleteLayoutError(str(error)) from error


def is_orbax_checkpoint(path: PathLike) -> bool:
    """Return whether a path is a complete checkpoint of Orbax's format, by either API."""
    context = Context()
    try:
        open_checkpoint(path, context)
    except (CheckpointError, OSError):
        return False
    return True


def without_deleted(names: Sequence[str], checkpoint: Checkpoint) -> list[str]:
    """Return the names of checkpointables that are not being deleted, with a warning for one."""
    if checkpoint.deleting is not None:
        _logger.warning(
            "%s: %r is left out, since its deletion is not finished",
            checkpoint.path,
            checkpoint.deleting,
        )
    return [name for name in names if name != checkpoint.deleting]
