"""Run parts of tests in a forked child."""

from __future__ import annotations

import os
import pickle
import select
import warnings
from collections.abc import Callable
from typing import Any

import pytest

_LONGEST_S = 60


def in_child(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a child of this process, which then ends at once."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX advise against it
        child = os.fork()
    if not child:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - told to the parent
            result = error
        os.write(writer, pickle.dumps(result))
        os._exit(0)
    os.close(writer)
    is_there = select.select([reader], [], [], _LONGEST_S)[0]
    if not is_there:
        os.kill(child, 9)
    with open(reader, "rb") as file:
        told = file.read()
    os.waitpid(child, 0)
    if not told:
        pytest.fail("the child hangs or has died")
    result = pickle.loads(told)  # noqa: S301 - our own
    if isinstance(result, BaseException):
        raise result
    return result
