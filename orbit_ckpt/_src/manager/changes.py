"""Changes of the steps of a run, and waits for them, which all its processes make together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from orbit_ckpt._src.manager.coordinator import RunCoordinator
from orbit_ckpt._src.manager.queries import RunQueries
from orbit_ckpt._src.manager.shared_index import IndexUpdate
from orbit_ckpt._src.manager.steps import as_step
from orbit_ckpt._src.manager.writer import StepWriter
from orbit_ckpt._src.runtime.checks import as_flag

_logger = logging.getLogger(__name__)


class RunChanges(RunQueries):
    """The steps of a run, with methods that concern all of its processes."""

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

    def should_save(self, step: int) -> bool:
        """Return whether `save` would save a step."""
        number = as_step(step)
        return self._writer.decide(number, f"should_save({number})").save

    def install_signal_handler(
        self, signum: int, *, deadline: float | timedelta | None = None
    ) -> None:
        """Save when a signal such as SIGTERM announces the end of the process.

        After the signal `should_save` is true, and `save` returns once the step is durable. The
        previous signal handler is called too.

        Args:
            signum: The signal.
            deadline: Seconds, or `timedelta`, between the signal and the end of the process; `save`
                raises `TimeoutError` if the step is not durable by then.

        Raises:
            RuntimeError: This is not the main thread.
        """
        self._coordinator.check_open(f"install_signal_handler({signum})")
        seconds = deadline.total_seconds() if isinstance(deadline, timedelta) else deadline
        self._writer.watch.install(signum, deadline_s=seconds)

    def reached_preemption(self, step: int) -> bool:
        """Return whether a signal or JAX's preemption service announces the end of the job."""
        number = as_step(step)
        return self._writer.reached_preemption(number, f"reached_preemption({number})")

    def wait_until_finished(self) -> None:
        """Wait until no save and no deletion is in progress.

        Raises:
            BackgroundSaveError: A save has failed; raised once.
            StorageError: A deletion has failed; raised once.
        """
        self._writer.finish()

    def check_for_errors(self) -> None:
        """Raise errors of background work without waiting.

        Raises:
            BackgroundSaveError: A save has failed; raised once.
            StorageError: A deletion has failed; raised once.
        """
        self._writer.check()

    def is_saving_in_progress(self) -> bool:
        """Return whether a background save is in progress."""
        return self._writer.is_running()

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
