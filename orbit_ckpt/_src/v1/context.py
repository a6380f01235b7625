"""The options in effect, as a context manager."""

from __future__ import annotations

import copy
from contextvars import ContextVar
from types import TracebackType
from typing import TypeVar, final

from orbit_ckpt._src.checkpointer.options import SessionOptions
from orbit_ckpt._src.runtime.checks import check_type
from orbit_ckpt._src.v1.guard import FROZEN, check_mutable, identities_in
from orbit_ckpt._src.v1.options import (
    ArrayOptions,
    AsyncOptions,
    AtomicityOptions,
    CheckpointablesOptions,
    CheckpointLayout,
    DeletionOptions,
    FileOptions,
    MemoryOptions,
    MultiprocessingOptions,
    PathwaysOptions,
    PyTreeOptions,
    SafetensorsOptions,
    session_options,
)

OptionsT = TypeVar("OptionsT")


@final
class Context:
    """The options of saves and loads in a `with` block.

    Options are set on a context, then it is entered; while it is active it cannot be changed. A new
    context begins with defaults, or with copies of the options of a given one. As with all context
    variables, a thread that a program starts has none.

    Example:
        >>> from orbit_ckpt import v1
        >>> v1.save("step_100", {"params": np.ones(3), "step": 100})
        >>> context = v1.Context()
        >>> context.pytree.loading.partial_load = True
        >>> with context:
        ...     state = v1.load("step_100", {"step": 0})
        >>> state
        {'step': 100}
    """

    def __init__(  # noqa: PLR0913 - Orbax's signature
        self,
        context: Context | None = None,
        *,
        pytree_options: PyTreeOptions | None = None,
        array_options: ArrayOptions | None = None,
        async_options: AsyncOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
        file_options: FileOptions | None = None,
        checkpointables_options: CheckpointablesOptions | None = None,
        pathways_options: PathwaysOptions | None = None,
        checkpoint_layout: CheckpointLayout | str | None = None,
        deletion_options: DeletionOptions | None = None,
        memory_options: MemoryOptions | None = None,
        safetensors_options: SafetensorsOptions | None = None,
        atomicity_options: AtomicityOptions | None = None,
    ) -> None:
        """Make a context.

        Args:
            context: Where options that are not given come from; None for the defaults.
            pytree_options: Options of trees.
            array_options: Options of arrays.
            async_options: Options of background saves.
            multiprocessing_options: How processes save together.
            file_options: Properties of files and paths.
            checkpointables_options: How handlers are found.
            pathways_options: Options of Pathways.
            checkpoint_layout: The format of checkpoints to load.
            deletion_options: How checkpoints are deleted.
            memory_options: Limits of host memory.
            safetensors_options: Options of reading safetensors.
            atomicity_options: How a checkpoint becomes visible.
        """
        example = "Give the context itself, as in Context(context)."
        check_type("context", context, Context, "a Context", example)
        base = context
        self._pytree = _pick(pytree_options, base and base.pytree, PyTreeOptions)
        self._array = _pick(array_options, base and base.array, ArrayOptions)
        self._asynchronous = _pick(async_options, base and base.asynchronous, AsyncOptions)
        self._multiprocessing = _pick(
            multiprocessing_options, base and base.multiprocessing, MultiprocessingOptions
        )
        self._file = _pick(file_options, base and base.file, FileOptions)
        self._checkpointables = _pick(
            checkpointables_options, base and base.checkpointables, CheckpointablesOptions
        )
        self._pathways = _pick(pathways_options, base and base.pathways, PathwaysOptions)
        self._deletion = _pick(deletion_options, base and base.deletion, DeletionOptions)
        self._memory = _pick(memory_options, base and base.memory, MemoryOptions)
        self._safetensors = _pick(
            safetensors_options, base and base.safetensors, SafetensorsOptions
        )
        self._atomicity = _pick(atomicity_options, base and base.atomicity, AtomicityOptions)
        layout = checkpoint_layout or (base and base.checkpoint_layout)
        self._layout = CheckpointLayout(layout or CheckpointLayout.ORBAX)

    @property
    def pytree(self) -> PyTreeOptions:
        """Options of trees."""
        return self._pytree

    @property
    def array(self) -> ArrayOptions:
        """Options of arrays."""
        return self._array

    @property
    def asynchronous(self) -> AsyncOptions:
        """Options of background saves."""
        return self._asynchronous

    @property
    def multiprocessing(self) -> MultiprocessingOptions:
        """How processes save together."""
        return self._multiprocessing

    @property
    def file(self) -> FileOptions:
        """Properties of files and paths."""
        return self._file

    @property
    def checkpointables(self) -> CheckpointablesOptions:
        """How handlers are found."""
        return self._checkpointables

    @property
    def pathways(self) -> PathwaysOptions:
        """Options of Pathways."""
        return self._pathways

    @property
    def deletion(self) -> DeletionOptions:
        """How checkpoints are deleted."""
        return self._deletion

    @property
    def memory(self) -> MemoryOptions:
        """Limits of host memory."""
        return self._memory

    @property
    def safetensors(self) -> SafetensorsOptions:
        """Options of reading safetensors."""
        return self._safetensors

    @property
    def atomicity(self) -> AtomicityOptions:
        """How a checkpoint becomes visible."""
        return self._atomicity

    @property
    def checkpoint_layout(self) -> CheckpointLayout:
        """The format of checkpoints to load; may be set by name."""
        return self._layout

    @checkpoint_layout.setter
    def checkpoint_layout(self, value: CheckpointLayout | str) -> None:
        check_mutable(self)
        self._layout = CheckpointLayout(value)

    pytree_options = pytree
    array_options = array
    async_options = asynchronous
    multiprocessing_options = multiprocessing
    file_options = file
    checkpointables_options = checkpointables
    pathways_options = pathways
    deletion_options = deletion
    memory_options = memory
    safetensors_options = safetensors

    def session(self) -> SessionOptions:
        """Return the engine's options of a save."""
        return session_options(
            self._asynchronous, self._multiprocessing, self._file, self._atomicity
        )

    def __enter__(self) -> Context:
        before = _ACTIVE.get(), FROZEN.get()
        _ENTERED.set((*_ENTERED.get(), before))
        _ACTIVE.set(self)
        FROZEN.set(before[1] | identities_in(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        *outer, (active, frozen) = _ENTERED.get()
        _ENTERED.set(tuple(outer))
        _ACTIVE.set(active)
        FROZEN.set(frozen)


_ACTIVE: ContextVar[Context | None] = ContextVar("orbit_ckpt_v1_context", default=None)
_ENTERED: ContextVar[tuple[tuple[Context | None, frozenset[int]], ...]] = ContextVar(
    "orbit_ckpt_v1_entered", default=()
)
"""What was active before each `with` block around; per thread, since threads share contexts."""


def current_context(default: Context | None = None) -> Context:
    """Return the active context, else the given one, else one with the defaults."""
    return _ACTIVE.get() or default or Context()


def _pick(given: OptionsT | None, inherited: OptionsT | None, kind: type[OptionsT]) -> OptionsT:
    """Return a copy of given or inherited options, or the defaults.

    Raises:
        TypeError: The given ones are of another class.
    """
    name = kind.__qualname__
    check_type(name, given, kind, f"of type {name}", f"Give {name}(...).")
    chosen = inherited if given is None else given
    return kind() if chosen is None else copy.deepcopy(chosen)
