"""The pace of requests to one store: pauses that all threads share, and how long to wait."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable

MIN_PATIENCE_S = 2.0
FIRST_PATIENCE_S = 15.0
MAX_PATIENCE_S = 60.0
"""Limits of the wait for an answer, and the wait before any answer was measured."""

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 20.0
"""Limits of the pause after a failure; it doubles with every further one."""

_MULTIPLE = 4
"""Wait this many times as long as the slowest twentieth of answers took."""

_MEASURED = 128
_ENOUGH = 8
"""Number of answers that are considered, and the number that makes them significant."""


class Pace:
    """What the requests to one store have in common; for many threads.

    A store that asks one thread to slow down means all of them: until the pause is over, none sends
    a request. A request without an answer is repeated after a multiple of the time that answers
    usually take, because a store rarely loses requests, but when it does, it never answers.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._resume_at = 0.0
        self._slow_downs = 0
        self._answers: deque[float] = deque(maxlen=_MEASURED)
        self._per_byte: deque[float] = deque(maxlen=_MEASURED)

    def wait(self) -> None:
        """Wait until requests may be sent."""
        while (pause := self._resume_at - self._clock()) > 0:
            self._sleep(pause + random.uniform(0, pause / 4))  # noqa: S311 - so that not all resume at once

    def slow_down(self) -> None:
        """Pause all requests: the store has asked for fewer."""
        with self._lock:
            now = self._clock()
            if now < self._resume_at:  # requests that were on their way
                return
            self._resume_at = now + pause_after(self._slow_downs)
            self._slow_downs += 1

    def answered(self, elapsed_s: float, sent_bytes: int = 0) -> None:
        """Record an answer.

        Args:
            elapsed_s: Time from the request to the beginning of its answer.
            sent_bytes: Size of the request's body.
        """
        with self._lock:
            if self._slow_downs and self._clock() >= self._resume_at:
                self._slow_downs -= 1
            if sent_bytes > _COUNTED_BYTES:
                self._per_byte.append(elapsed_s / sent_bytes)
            else:
                self._answers.append(elapsed_s)

    def patience_s(self, sent_bytes: int = 0) -> float:
        """Return how long to wait for an answer before repeating a request.

        Args:
            sent_bytes: Size of the request's body.
        """
        with self._lock:
            answer = _high(self._answers)
            per_byte = _high(self._per_byte)
        is_large = sent_bytes > _COUNTED_BYTES
        if answer is None or (is_large and per_byte is None):
            return MAX_PATIENCE_S if is_large else FIRST_PATIENCE_S
        expected = answer + (sent_bytes * (per_byte or 0.0) if is_large else 0.0)
        return min(MAX_PATIENCE_S, max(MIN_PATIENCE_S, _MULTIPLE * expected))


_COUNTED_BYTES = 1 << 20
"""Bodies above this size take time that depends on the bandwidth."""


def pause_after(failures: int) -> float:
    """Return how long to pause, in seconds, after one failure more than a number of them."""
    return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**failures)


def _high(times: deque[float]) -> float | None:
    """Return a high quantile; None of too few."""
    if len(times) < _ENOUGH:
        return None
    return sorted(times)[len(times) * 19 // 20]
