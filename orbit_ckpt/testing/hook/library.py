"""Watch what the library does that Python's functions do not show: phases, swaps and requests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from orbit_ckpt._src.lazy_imports import when_imported
from orbit_ckpt.testing.hook.operations import Call, Interceptor, Operation
from orbit_ckpt.testing.hook.phases import Phase, PhaseTracker

_Function = Callable[..., Any]


def watch_library(interceptor: Interceptor, phases: PhaseTracker) -> None:
    """Watch the modules of the library, as soon as the program imports them.

    Args:
        interceptor: Takes the operations.
        phases: Takes the phases of saves and deletions.
    """

    def watch(name: str, patch: Callable[[ModuleType], None]) -> None:
        when_imported(f"orbit_ckpt._src.{name}", patch)

    def watch_clients(module: Any) -> None:
        _watch_requests(module.ClientBucket, interceptor)
        _watch_uploads(module.PartsUpload, interceptor)

    watch("checkpointer.transaction", lambda m: _watch_saves(m.SaveSession, interceptor, phases))
    watch("manager.garbage_collection", lambda m: _watch_deletions(m.StepDeleter, phases))
    watch("storage.atomic", lambda m: _watch_swaps(m, interceptor))
    watch("storage.buckets", lambda m: _watch_requests(m.TensorStoreBucket, interceptor))
    watch("storage.client_bucket", watch_clients)


def _watch_saves(session: Any, interceptor: Interceptor, phases: PhaseTracker) -> None:
    set_phase: _Function = session.set_phase
    leave: _Function = session.__exit__

    def set_phase_watched(self: Any, phase: str) -> None:
        path = str(self._atomic.final)
        if phases.enter(path, phase) is Phase.SNAPSHOT and interceptor.wants(path):
            interceptor(Call(Operation("snapshot", path), _nothing, _nothing))
        set_phase(self, phase)

    def leave_watched(self: Any, *error: object) -> None:
        try:
            leave(self, *error)
        finally:
            phases.leave(str(self._atomic.final))

    session.set_phase = set_phase_watched
    session.__exit__ = leave_watched


def _watch_deletions(deleter: Any, phases: PhaseTracker) -> None:
    tombstone: _Function = deleter.tombstone
    remove: _Function = deleter.remove

    def tombstone_watched(self: Any, directory: Any) -> object:
        with phases.deleting(str(directory)):
            return tombstone(self, directory)

    def remove_watched(self: Any, found: Any, directory: Any) -> None:
        with phases.deleting(str(found), str(directory)):
            remove(self, found, directory)

    deleter.tombstone = tombstone_watched
    deleter.remove = remove_watched


def _watch_swaps(module: Any, interceptor: Interceptor) -> None:
    swap: _Function = module._rename_exchange  # noqa: SLF001 - of the library itself
    module._rename_exchange = watched_swap(interceptor, swap)  # noqa: SLF001 - likewise


def watched_swap(interceptor: Interceptor, exchange: _Function) -> _Function:
    """Return a function that swaps two paths, by way of an interceptor."""

    def watched(a: Any, b: Any) -> bool:
        perform = functools.partial(exchange, a, b)
        if not interceptor.wants(str(b)):
            return perform()
        return interceptor(Call(Operation("exchange", str(b), str(a)), perform, lambda: True))

    return watched


def _watch_requests(bucket: Any, interceptor: Interceptor) -> None:
    begin_write: _Function = bucket.begin_write
    end_write: _Function = bucket.end_write
    pretended = object()

    def begin_write_watched(self: Any, key: str, data: bytes) -> object:
        url = f"{self.url}/{key}"
        perform = functools.partial(begin_write, self, key, data)
        if not interceptor.wants(url):
            return perform()
        return interceptor(
            Call(Operation("put", url, nbytes=len(data)), perform, lambda: pretended)
        )

    def end_write_watched(self: Any, key: str, pending: object, **more: Any) -> None:
        if pending is not pretended:
            end_write(self, key, pending, **more)

    def deleting(original: _Function) -> _Function:
        def watched(self: Any, key: str, **more: Any) -> object:
            url = f"{self.url}/{key}"
            perform = functools.partial(original, self, key, **more)
            if not interceptor.wants(url):
                return perform()
            return interceptor(Call(Operation("delete", url), perform, _nothing))

        return watched

    bucket.begin_write = begin_write_watched
    bucket.end_write = end_write_watched
    bucket.delete = deleting(bucket.delete)
    bucket.delete_below = deleting(bucket.delete_below)


def _watch_uploads(upload: Any, interceptor: Interceptor) -> None:
    complete: _Function = upload.complete

    def complete_watched(self: Any) -> None:
        """Complete an upload, which is when its object begins to exist."""
        perform = functools.partial(complete, self)
        if not interceptor.wants(self.url):
            perform()
            return
        interceptor(Call(Operation("put", self.url, nbytes=self.nbytes), perform, _nothing))

    upload.complete = complete_watched


def _nothing() -> None:
    return None
