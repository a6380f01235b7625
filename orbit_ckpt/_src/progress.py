"""Show how far an operation is: a bar, or a function of the caller.

Nothing is counted for it: a thread asks now and then what the operation counts anyway.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Generator

from orbit_ckpt._src.runtime.checks import show

_logger = logging.getLogger(__name__)

Progress = Callable[[int, int], object]
"""Called with the bytes that are done, and the total."""

_INTERVAL_S = 0.1


@contextlib.contextmanager
def reporting(
    progress: bool | Progress | None, title: str
) -> Generator[Callable[[Callable[[], tuple[int, int]]], object] | None]:
    """Report the progress of the operation in the `with` block.

    The context yields a function to call once the operation has something to ask, with a function
    that returns the bytes done and the total; or None if nothing is to be reported. The progress is
    reported ten times a second from another thread, and at the end. An error of `progress` is
    logged, and ends the reports, not the operation.

    Args:
        progress: True for a bar in terminals and notebooks, or a function.
        title: What the bar is called.

    Raises:
        TypeError: `progress` is something else.
        ImportError: There is no package that draws a bar.
    """
    if progress is None or progress is False:
        yield None
        return
    if progress is not True and not callable(progress):
        raise TypeError(
            f"progress must be True, or a function that takes the bytes done and their total; "
            f"found {show(progress)}."
        )
    with (
        progress_bar(title, transient=False)
        if progress is True
        else contextlib.nullcontext(progress)
    ) as report:
        sampler = _Sampler(report)
        try:
            yield sampler.start
        except BaseException:
            sampler.stop()
            raise
        sampler.finish()


class _Sampler:
    """A thread that reports the progress of an operation at intervals."""

    def __init__(self, report: Progress) -> None:
        self._report: Progress | None = report
        self._measure: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._last = (-1, -1)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orbit_ckpt progress", daemon=True)

    def start(self, measure: Callable[[], tuple[int, int]]) -> None:
        """Begin to report what a function returns."""
        self._measure = measure
        self._thread.start()

    def stop(self) -> None:
        """Report no more."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def finish(self) -> None:
        """Report that everything is done."""
        self.stop()
        done, total = self._measure()
        total = max(done, total)
        self._send(total, total)

    def _run(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            done, total = self._measure()
            if total:
                self._send(min(done, total), total)

    def _send(self, done: int, total: int) -> None:
        if self._report is None or (done, total) == self._last:
            return
        self._last = done, total
        try:
            self._report(done, total)
        except Exception:  # of the caller's function, which must not fail a save
            _logger.exception("progress=%r failed and is not called again", self._report)
            self._report = None


@contextlib.contextmanager
def progress_bar(title: str, *, transient: bool = True) -> Generator[Callable[[int, int], None]]:
    """Draw a bar on standard error if that is a terminal, or in a notebook.

    The context yields a function of the bytes done and the total.

    Args:
        title: What the bar is called.
        transient: Whether to remove the bar at the end.

    Raises:
        ImportError: Rich is not installed.
    """
    try:
        from rich import console as consoles  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError(
            "progress=True draws its bar with rich, which is not installed: pip install "
            "'orbit-ckpt[cli]'; or give a function that takes the bytes done and their total."
        ) from error
    console = consoles.Console(file=sys.stderr)
    if not (console.is_terminal or console.is_jupyter):
        yield lambda done, total: None  # noqa: ARG005 - nobody sees it
        return
    from rich import progress  # noqa: PLC0415 - see above

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, transient=transient) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
