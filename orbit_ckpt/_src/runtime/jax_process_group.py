"""The processes of `jax.distributed`, with its coordination service as their key-value store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Generator
from hashlib import blake2b
from typing import Any

from typing_extensions import override

from orbit_ckpt._src.errors import CheckpointError, ProcessFailedError
from orbit_ckpt._src.runtime.process import (
    Process,
    ProcessGroup,
    SingleProcess,
    distributed_state,
    process_of_jax,
    reset_in_child,
)
from orbit_ckpt._src.runtime.rendezvous import KeyValueGroup, KeyValueStore


class _Membership:
    """Whether this process belongs to `jax.distributed`, or was forked from one that does."""

    def __init__(self) -> None:
        self.is_inherited = False
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Drop the parent's connection, whose threads are gone."""
        state = distributed_state()
        self.is_inherited = state is not None and state.client is not None


_membership = _Membership()
"""Process-wide, as the connection is."""


def has_preemption_service() -> bool:
    """Return whether JAX watches for preemption; it can with one process, too."""
    state = distributed_state()
    if state is None:
        return False
    return state.preemption_sync_manager is not None and not _membership.is_inherited


class JaxProcessGroup(KeyValueGroup):
    """All or some processes of `jax.distributed`."""

    def __init__(
        self, *, prefix: str = "", primary: int = 0, active: Collection[int] | None = None
    ) -> None:
        """Make the group; `jax.distributed.initialize` must have been called.

        Args:
            prefix: Distinguishes groups that share processes.
            primary: Index of the primary process.
            active: The processes of the group, this one among them; None for all.

        Raises:
            ValueError: This process or the primary one is not among them.
            CheckpointError: This process was forked from one of them, and does not belong.
        """
        mine = process_of_jax()
        if _membership.is_inherited:
            raise CheckpointError(
                f"Process {os.getpid()} was forked from process {mine.index} of {mine.count} of "
                "jax.distributed, and is none of them: it cannot save with the others. Save in "
                "the parent, or on its own with MultiprocessingOptions(primary_host=None)."
            )
        names = range(mine.count) if active is None else sorted(active)
        for index, what in ((mine.index, "this process"), (primary, "primary_host")):
            if index not in names:
                raise ValueError(
                    f"{what}, {index}, is not among the processes that save: {list(names)}. Give "
                    "active_processes that have it, or do not save there."
                )
        # a subset counts from 0 too, so that file names do not depend on which processes save
        process = Process(names.index(mine.index), len(names), names.index(primary))
        super().__init__(_JaxKeyValueStore(), process, prefix=prefix, names=names)


def default_group(
    prefix: str = "", *, primary: int | None = 0, active: Collection[int] | None = None
) -> ProcessGroup:
    """Return the processes of `jax.distributed` if there are several, else this one alone.

    Args:
        prefix: As for `JaxProcessGroup`.
        primary: Likewise; None makes each process a group and primary of its own.
        active: As for `JaxProcessGroup`.

    Raises:
        ValueError: This process or the primary one is not among them.
    """
    mine = process_of_jax()
    if primary is None or mine.is_alone or (active is not None and {*active} == {mine.index}):
        return SingleProcess()
    return JaxProcessGroup(prefix=prefix, primary=primary, active=active)


def barrier_or_fail(
    name: str,
    processes: Collection[int],
    failure: Exception | None = None,
    *,
    timeout_s: float = 600.0,
) -> None:
    """Wait until all given processes are ready for a collective operation.

    Args:
        name: Name of the operation; the same on all of them.
        processes: Their indices among JAX's processes, including this one's.
        failure: Why this process will not take part; it then does not wait for the others.
        timeout_s: Maximum seconds to wait.

    Raises:
        ProcessFailedError: Another process will not take part.
        ProcessTimeoutError: Another process did not arrive in time.
    """
    # other processes may use the same name at the same time
    members = blake2b(repr(sorted(processes)).encode(), digest_size=8).hexdigest()
    group = JaxProcessGroup(prefix=f"ready-{members}", primary=min(processes), active=processes)
    rendezvous = group.join(name, timeout_s)
    try:
        if failure is None:
            rendezvous.barrier("ready")
            return
        rendezvous.fail(failure, ["ready"])
        if group.process.is_primary:
            rendezvous.drain()  # the others may yet arrive at this attempt
    finally:
        rendezvous.finish()


@contextlib.contextmanager
def _service_errors() -> Generator[None]:
    """Convert an error of JAX's client to a `ProcessFailedError`."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessFailedError(
            "JAX's coordination service, which the first process runs, does not do its work: "
            f"{error}. Look at the logs of that process.",
            process=0,
        ) from error


class _JaxKeyValueStore(KeyValueStore):
    """The key-value store of `jax.distributed`."""

    def __init__(self) -> None:
        state = distributed_state()
        self._client: Any = state.client

    @override
    @_service_errors()
    def put(self, key: str, value: bytes) -> None:
        self._client.key_value_set_bytes(key, value, allow_overwrite=True)

    @override
    @_service_errors()
    def put_new(self, key: str, value: bytes) -> bool:
        try:
            self._client.key_value_set_bytes(key, value)
        except RuntimeError as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise
        return True

    @override
    @_service_errors()
    def get(self, key: str, timeout_s: float) -> bytes | None:
        try:
            return self._client.blocking_key_value_get_bytes(key, max(1, int(timeout_s * 1000)))
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise

    @override
    @_service_errors()
    def list(self, folder: str) -> dict[str, bytes]:
        found = self._client.key_value_dir_get_bytes(folder)
        return {key.removeprefix(folder): value for key, value in found}

    @override
    @_service_errors()
    def add(self, key: str, amount: int) -> int:
        return self._client.key_value_increment(key, amount)

    @override
    @_service_errors()
    def delete(self, key: str) -> None:
        self._client.key_value_delete(key)
