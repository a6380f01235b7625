"""Changes of the steps of a run, which all its processes make together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from orbit_ckpt._src.manager.coordinator import RunCoordinator
from orbit_ckpt._src.manager.queries import RunQueries
from orbit_ckpt._src.manager.shared_index import IndexUpdate
from orbit_ckpt._src.manager.steps import as_step
from orbit_ckpt._src.manager.writer import StepWriter
from orbit_ckpt._src.runtime.checks import as_flag

_logger = logging.getLogger(__name__)


class RunChanges(RunQueries):
    """The steps of a run, with methods that delete and pin them on all processes."""

    _coordinator: RunCoordinator
    _writer: StepWriter

    def all_steps(self, read: bool = False) -> list[int]:
        """Return the durable steps and the one that this manager is saving, ascending.

        `restore` waits for a step that is being saved. Other managers list it once it is durable.

        Args:
            read: Whether to read the directory again, for steps that other processes wrote.
        """
        if as_flag("read", read):
            self.reload()
        return self._store.steps()

    def reload(self) -> None:
        """Read the directory again, for steps that other processes wrote."""

        def read() -> IndexUpdate:
            self._store.shared.reload()
            return self._writer.pending_update()

        self._store.apply_update(self._coordinator.decide("reload()", read, IndexUpdate))

    def delete(self, step: int) -> None:
        """Delete a step.

        Raises:
            StepNotFoundError: The step does not exist.
            StorageError: The storage refused.
        """
        if self._options.read_only:
            _logger.warning("%s is read-only: step %d is not deleted", self._directory, step)
            return
        self._change(f"delete({step})", as_step(step), self._store.delete)
        self._store.errors.raise_any()

    def pin(self, step: int) -> None:
        """Keep a step, even a temporary one, regardless of the policies.

        Raises:
            StepNotFoundError: The step does not exist.
            ValueError: The manager is read-only.
        """
        self._set_pinned(step, f"pin({step})", pinned=True)

    def unpin(self, step: int) -> None:
        """Leave a step to the policies again.

        Raises:
            StepNotFoundError: The step does not exist.
            ValueError: The manager is read-only.
        """
        self._set_pinned(step, f"unpin({step})", pinned=False)

    def _change(self, call: str, step: int, change: Callable[[int], object]) -> None:
        """Change a step on the primary process once it is durable.

        Raises:
            StepNotFoundError: The step does not exist.
        """
        self._coordinator.check_open(call)
        self._store.durable_path(step)

        def act() -> IndexUpdate:
            change(step)
            return self._writer.pending_update()

        self._store.apply_update(self._coordinator.decide(call, act, IndexUpdate))

    def _check_writable(self) -> None:
        """Check that the manager may change its steps.

        Raises:
            ValueError: It may not.
        """
        if self._options.read_only:
            raise ValueError(f"{self._directory} is opened read-only; open it without read_only.")

    def _set_pinned(self, step: int, call: str, *, pinned: bool) -> None:
        self._check_writable()
        self._change(call, as_step(step), partial(self._store.set_pinned, pinned=pinned))
