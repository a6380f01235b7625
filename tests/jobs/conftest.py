"""Executors that jobs are given to."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

import pytest


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    """A pool for the tests of one file: its threads do not survive those that forbid open files."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor
