"""One save, from the first file to the commit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec.msgpack
from msgspec import Struct

from orbit_ckpt._src.checkpointer.options import SessionOptions
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.guards import is_mapping
from orbit_ckpt._src.metadata.files import add_item_handler, write_step
from orbit_ckpt._src.metadata.schema import StepDocument
from orbit_ckpt._src.metadata.step_details import (
    RecordedRule,
    StepDetails,
    write_rules,
    write_step_details,
)
from orbit_ckpt._src.metadata.user_json import copy_json
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.runtime.futures import Future, collect_futures, wait_for_end
from orbit_ckpt._src.runtime.joint import Assignment, JointWork, collecting_work
from orbit_ckpt._src.runtime.loop import run_checked
from orbit_ckpt._src.runtime.process import (
    NO_OTHERS,
    Process,
    Rendezvous,
    acting_as,
    reset_in_child,
)
from orbit_ckpt._src.runtime.rendezvous import pace
from orbit_ckpt._src.storage.amend import adding_item, replacing_item
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.integrity import write_manifest
from orbit_ckpt._src.storage.store_view import viewing

_CHECK_S = 1.0
"""How often a process that writes looks whether another one has failed."""


class Barrier(StrEnum):
    """The barriers of one save, in order.

    Attributes:
        CREATED: The primary process has created the directory.
        WRITTEN: All processes have written their parts.
        MERGED: The processes that merge parts have done so; only the primary waits for them.
        COMMITTING: Everything is durable; from here no process can stop the checkpoint from
            appearing. Nobody waits for it.
        COMMITTED: The checkpoint has appeared.
    """

    CREATED = "created"
    WRITTEN = "written"
    MERGED = "merged"
    COMMITTING = "committing"
    COMMITTED = "committed"


class _Written(Struct, frozen=True):
    """What a process brings to the barrier `WRITTEN`.

    Attributes:
        handlers: Typestr of the item's handler, or of every item's by name.
        reports: The reports of its joint work, by name.
    """

    handlers: str | dict[str, str]
    reports: dict[str, bytes]


class SaveSession:
    """A checkpoint being written, by one process or by several together.

    Use it as a context manager: leaving it without `commit` removes everything. Items are written
    into `directory`, then `commit` records their handlers and makes the checkpoint visible. The
    primary process creates the directory and everything of which there is only one; a failure of
    one process fails all.
    """

    def __init__(  # noqa: PLR0913 - what is known of one save
        self,
        path: Path,
        *,
        overwrite: bool,
        options: SessionOptions,
        custom_metadata: Mapping[str, object] | None = None,
        details: StepDetails | None = None,
        rules: Sequence[RecordedRule] = (),
        waited_s: float | None = None,
        is_item: bool = False,
    ) -> None:
        """Prepare a session; nothing is created yet.

        Args:
            path: The checkpoint.
            overwrite: Whether to replace an existing one.
            options: How to save.
            custom_metadata: A JSON object to store with it.
            details: Further facts to record about a step.
            rules: The retention rules to record with a step.
            waited_s: How long this save waited for the previous one, None if not known.
            is_item: Whether the path is an item to add to the checkpoint that it is in.

        Raises:
            TypeError: `custom_metadata` cannot be written as JSON.
        """
        self._atomic = directory_of(path).begin_save(
            overwrite=overwrite,
            mode=options.atomicity.mode,
            permissions=options.files.path_permission_mode,
        )
        self._overwrite = overwrite
        self._directory = self._atomic.path
        self._custom = check_json_object(custom_metadata or {})
        self._details = details
        self._rules = rules
        self._is_item = is_item
        self._time_ns = options.time_ns
        self._began_ns = self._time_ns()
        self._began = time.monotonic()
        self._waited_s = waited_s
        self._blocked_s: float | None = None
        self._group = options.multiprocessing.find_group()
        self._timeout_s = options.multiprocessing.timeout_s
        self._pending = list(Barrier)
        self._rendezvous: Rendezvous = NO_OTHERS
        self._begun: list[Future] = []
        self._works: dict[str, JointWork] = {}
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Stop informing other processes: a forked child is none of them."""
        self._rendezvous = NO_OTHERS
        self._begun.clear()  # its threads are in the parent

    @property
    def directory(self) -> Path:
        """The directory for items."""
        return self._directory

    @property
    def process(self) -> Process:
        """This process among those that save."""
        return self._group.process

    @contextlib.contextmanager
    def called(self) -> Generator[None]:
        """Call handlers in the block: as this process, and with the work that they begin noted."""
        with (
            acting_as(self.process),
            collect_futures(self._begun),
            collecting_work(self._works),
        ):
            yield

    def decline(self, error: BaseException) -> None:
        """Tell the other processes that this one failed before it could start.

        Raises:
            ProcessTimeoutError: The primary process has not started in time.
        """
        rendezvous = self._join()
        try:
            rendezvous.fail(error, Barrier)
            if self._is_primary:
                rendezvous.drain()  # late processes may still join this attempt
        finally:
            rendezvous.finish()

    def __enter__(self) -> SaveSession:
        """Create the directory, or wait until the primary process has.

        Raises:
            CheckpointExistsError: The checkpoint exists and must not be overwritten.
            ProcessFailedError: Another process has failed.
            ProcessTimeoutError: The primary process has not joined in time.
        """
        failure: BaseException | None = None
        if self._is_primary:
            self.set_phase("making the directory")
            try:
                self._atomic.__enter__()
            except BaseException as error:  # noqa: BLE001 - raised again once the others know
                failure = error
        try:
            self._rendezvous = self._join(b"" if failure else os.fsencode(self._atomic.path.name))
        except BaseException:
            self._atomic.__exit__()
            raise
        try:
            self._created(failure)
        except BaseException as error:  # raised again once the other processes know
            self._leave(error)
            raise
        return self

    def _created(self, failure: BaseException | None) -> None:
        """Pass the barrier `CREATED`, which joining is, unless the primary process has failed."""
        if failure is not None:
            raise failure
        name = self._rendezvous.opening
        if not self._is_primary:
            name = name or self._rendezvous.broadcast(Barrier.CREATED, None)
            self._directory = self._atomic.final.with_name(os.fsdecode(name))
        self._pending.remove(Barrier.CREATED)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(error)

    def set_phase(self, phase: str) -> None:
        """Publish the current phase of this process, for other processes' messages."""
        self._rendezvous.set_phase(phase)

    def release_caller(self) -> float:
        """Note that the save continues without its caller; return the seconds that this took."""
        self._blocked_s = time.monotonic() - self._began
        return self._blocked_s

    async def write(self, commit: Commit) -> None:
        """Write the staged data; stop if another process fails."""
        self.set_phase("writing")
        if self._group.process.is_alone:
            await commit.run()
        else:
            check = partial(self._rendezvous.check, Barrier.WRITTEN)
            await asyncio.to_thread(check)  # a failed save's directory may be gone already
            await run_checked(commit.run(), check, pace(_CHECK_S, self.process.count))

    def commit(
        self,
        item_handlers: str | Mapping[str, str],
        finalize: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the checkpoint durable and visible once all processes have written their parts.

        Args:
            item_handlers: Typestr of the item's handler, or of every item's by name.
            finalize: Called on the primary process before the commit, to finish the items.

        Raises:
            CheckpointError: Another process has saved an item with another handler.
            ProcessFailedError: Another process has failed.
            ProcessTimeoutError: Another process has not joined in time.
        """
        self._merge(self._agree(item_handlers))
        if self._is_primary:
            self.set_phase("finishing")
            with viewing([self.directory], anew=True, beside=False):
                self._complete(item_handlers, finalize)
            self._broadcast(Barrier.COMMITTING)
            self.set_phase("committing")
            with self._changes_around(item_handlers):
                self._atomic.commit()
        self._broadcast(Barrier.COMMITTED, settled_by=Barrier.COMMITTING)

    def _complete(
        self, item_handlers: str | Mapping[str, str], finalize: Callable[[], None]
    ) -> None:
        """Write what only the primary process writes."""
        if not self._is_item:
            self._write_documents(item_handlers)
        finalize()
        write_manifest(self.directory)

    def _agree(self, item_handlers: str | Mapping[str, str]) -> dict[str, Assignment]:
        """Wait until all have written; return what the primary process decides on joint work."""
        above = str(self._directory)
        works = {place.removeprefix(above): work for place, work in self._works.items()}
        self._works = works  # by the same names on all processes
        reports = {name: work.report() for name, work in works.items()}
        mine = item_handlers if isinstance(item_handlers, str) else dict(item_handlers)

        def decide(values: list[bytes]) -> bytes:
            brought = [msgspec.msgpack.decode(value, type=_Written) for value in values]
            self._check_same_handlers(mine, [written.handlers for written in brought])
            return msgspec.msgpack.encode(
                {
                    name: work.assign([written.reports.get(name, b"") for written in brought])
                    for name, work in works.items()
                }
            )

        written = msgspec.msgpack.encode(_Written(mine, reports))
        found = self._rendezvous.agree(Barrier.WRITTEN, written, decide)
        self._pending.remove(Barrier.WRITTEN)
        return msgspec.msgpack.decode(found, type=dict[str, Assignment])

    def _merge(self, assignments: Mapping[str, Assignment]) -> None:
        """Do this process's share of joint work; the primary process waits for all shares."""
        index = self._group.process.index
        workers = {worker for found in assignments.values() for worker in found.workers}
        if index in workers:
            self.set_phase("merging")
        for name, assignment in assignments.items():
            if index in assignment.workers:
                self._works[name].work(assignment, assignment.workers.index(index))
        if workers and (self._is_primary or index in workers):
            self._rendezvous.gather(Barrier.MERGED, b"", among=workers)
        self._pending.remove(Barrier.MERGED)

    def _changes_around(
        self, item_handlers: str | Mapping[str, str]
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context that keeps the records of the enclosing checkpoint correct."""
        item = self._atomic.final
        if self._is_item:
            return adding_item(item, lambda: add_item_handler(item, str(item_handlers)))
        return replacing_item(item) if self._overwrite else contextlib.nullcontext()

    @property
    def _is_primary(self) -> bool:
        return self._group.process.is_primary

    def _join(self, value: bytes = b"") -> Rendezvous:
        name = f"save of {self._atomic.final}"
        return self._group.join(name, self._timeout_s, value=value, phase="staging")

    def _broadcast(self, barrier: Barrier, *, settled_by: str = "") -> None:
        self._rendezvous.broadcast(barrier, b"", settled_by=settled_by)
        self._pending.remove(barrier)

    def _leave(self, error: BaseException | None) -> None:
        """Remove uncommitted files, and report an error to the other processes.

        Raises:
            ProcessFailedError: Another process had failed before.
            ProcessTimeoutError: Another process had not joined in time.
        """
        first = None
        try:
            if error is not None:
                first = self._rendezvous.fail(error, self._pending)
            if isinstance(error, Exception) and not wait_for_end(self._begun, self._timeout_s):
                error.add_note(
                    f"Work that a handler began has not ended after {self._timeout_s:g} seconds. "
                    "It may still write files."
                )
            if self._is_primary and isinstance(error, Exception):
                self._rendezvous.drain()  # they may be writing where everything will be removed
        except CheckpointError as gone:
            if error is not None:
                error.add_note(f"The other processes could not be informed: {gone}")
        finally:
            self._atomic.__exit__()
            with contextlib.suppress(CheckpointError):  # the store is gone, and the run with it
                self._rendezvous.finish()
        if first is not None and isinstance(error, Exception):
            raise first from error

    def _check_same_handlers(
        self, mine: str | Mapping[str, str], brought: Sequence[str | Mapping[str, str]]
    ) -> None:
        """Check that all processes saved with the same handlers, so that nothing is lost."""
        for name, theirs in zip(self._group.names, brought, strict=True):
            pairs: list[tuple[str, object, object]] = [("the item", mine, theirs)]
            if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
                shared = sorted(mine.keys() & theirs.keys())
                pairs = [(f"item {item!r}", mine[item], theirs[item]) for item in shared]
            for what, one, other in pairs:
                if one != other:
                    raise CheckpointError(
                        f"{self._atomic.final}: process {name} saves {what} with {other}, the "
                        f"primary process with {one}. Save the same on all."
                    )

    def _write_documents(self, item_handlers: str | Mapping[str, str]) -> None:
        document = StepDocument(
            item_handlers=item_handlers,
            init_timestamp_nsecs=self._began_ns,
            commit_timestamp_nsecs=self._time_ns(),
            custom_metadata=self._custom,
            other={"performance_metrics": self._durations()},
        )
        write_step(self.directory, document)
        if self._details is not None:
            write_step_details(self.directory, self._details)
        if self._rules:
            write_rules(self.directory, self._rules)

    def _durations(self) -> dict[str, float]:
        """Return how long the phases of the save took, in fields that Orbax knows."""
        began, waited, blocked = self._began_ns / 1e9, self._waited_s, self._blocked_s
        found = {
            "checkpointer_blocking_start_time": began,
            "checkpointer_blocking_duration_secs": (
                time.monotonic() - self._began if blocked is None else blocked
            ),
        }
        if waited is not None:
            found["wait_for_prev_start_time"] = began - waited
            found["wait_for_prev_duration_secs"] = waited
        return found


def check_json_object(value: object) -> dict[str, object]:
    """Return a copy of a user's JSON object.

    Raises:
        TypeError: It is not an object, or cannot be written as JSON.
    """
    wanted = "Use a dict of dicts, lists, strings, numbers, booleans and None, with keys of str."
    if not is_mapping(value):
        found = type(value).__name__
        raise TypeError(f"custom_metadata must be a JSON object, found {found}. {wanted}")
    wrong = [key for key in value if not isinstance(key, str)]
    if wrong:
        raise TypeError(f"custom_metadata must be a JSON object, found key {wrong[0]!r}. {wanted}")
    try:
        return copy_json(dict(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"custom_metadata must be a JSON object: {error}. {wanted}") from error
