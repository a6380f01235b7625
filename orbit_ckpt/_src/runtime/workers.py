"""Threads for blocking work."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from typing_extensions import override

P = ParamSpec("P")
T = TypeVar("T")


class Workers(Executor):
    """An executor that accepts work until the interpreter exits.

    `ThreadPoolExecutor` refuses work once the main thread has ended, but that is when the last
    checkpoint of a run may be saved: by another thread, or by an `atexit` function. These threads
    end when no work is left. They are not daemons: the interpreter waits for them without a hook.
    Where no thread can be started, as during the exit of Python 3.12, `submit` does the work before
    it returns.
    """

    def __init__(self, count: int, name: str) -> None:
        """Create the executor; no thread starts yet.

        Args:
            count: Maximum number of threads.
            name: Prefix of the threads' names.
        """
        self._count = count
        self._name = name
        self._waiting: deque[_Work] = deque()
        self._working = 0
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_shut_down = False

    @override
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        work = _Work(future, partial(fn, *args, **kwargs))
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError(f"{self._name}: no work is taken after shutdown()")
            self._waiting.append(work)
            is_short_of_threads = self._working < self._count
            self._working += is_short_of_threads
        del work  # the working thread drops the references
        if is_short_of_threads:
            self._add_thread()
        return future

    @override
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._is_shut_down = True
            dropped = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            threads = list(self._threads)
        for work in dropped:
            work.future.cancel()
        if wait:
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join()

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=self._name, daemon=False)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            with self._lock:
                is_alone = self._working == 1
                self._working -= not is_alone
            if is_alone:  # else another thread takes it
                self._work()
            return
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()]
            self._threads.append(thread)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._working -= 1
                    return
                work = self._waiting.popleft()
            work.run()
            del work


class _Work:
    """A call and the future of its result."""

    def __init__(self, future: Future[Any], call: Callable[[], Any]) -> None:
        self.future = future
        self._call = call

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._call()
        except BaseException as error:  # noqa: BLE001 - any error goes to the caller
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
