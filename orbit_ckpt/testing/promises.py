"""Promises of plug-ins, and the error of a test that finds one broken."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class PromiseBrokenError(AssertionError):
    """A plug-in does not keep a promise of its contract.

    Attributes:
        promise: The promise, as a sentence without a full stop.
        found: What the test found.
        expected: What it expected instead.
    """

    def __init__(self, promise: str, found: str, expected: str) -> None:
        super().__init__(f"Broken promise: {promise}. Found {found}, expected {expected}.")
        self.promise = promise
        self.found = found
        self.expected = expected


class NotMetError(Exception):
    """What `expect` raises for `promised` to report.

    Attributes:
        found: What the test found.
        expected: What it expected instead.
    """

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"found {found}, expected {expected}")
        self.found = found
        self.expected = expected


def promised(test: Callable[P, T]) -> Callable[P, T]:
    """Let a test fail with the promise that is the first sentence of its docstring.

    The test checks with `expect`; an error of another kind breaks the promise as well.

    Args:
        test: A test of a contract.
    """
    promise = (inspect.getdoc(test) or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return test(*args, **kwargs)
        except NotMetError as error:
            raise PromiseBrokenError(promise, error.found, error.expected) from None
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise PromiseBrokenError(promise, found, "no error") from error

    return run


def expect(is_met: bool, *, found: object, expected: object) -> None:
    """Check a condition of the promise that is being tested.

    Args:
        is_met: The condition.
        found: What was found, for the message.
        expected: What is expected, for the message.
    """
    __tracebackhide__ = True
    if not is_met:
        raise NotMetError(str(found), str(expected))
