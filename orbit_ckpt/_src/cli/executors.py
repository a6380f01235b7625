"""The executors that the options of commands mean."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from concurrent.futures import Executor
from typing import cast

import click

from orbit_ckpt._src.errors import MissingPackageError


@contextlib.contextmanager
def open_executor(workers: int | None, dask: str | None) -> Generator[Executor | None]:
    """Provide the executor of the options; None without any.

    Args:
        workers: Number of processes to start here.
        dask: Address of a Dask scheduler, such as `tcp://host:8786`.

    Raises:
        BadParameter: Both are given, or no scheduler answers.
        MissingPackageError: Dask is not installed.
    """
    if workers is not None and dask is not None:
        raise click.BadParameter("Give --workers or --dask, not both.")
    if workers is not None:
        with _process_pool(workers) as executor:
            yield executor
    elif dask is not None:
        with _dask_executor(dask) as executor:
            yield executor
    else:
        yield None


@contextlib.contextmanager
def _process_pool(workers: int) -> Generator[Executor]:
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - imports multiprocessing
    from multiprocessing import get_context  # noqa: PLC0415 - as above

    # not forked: the threads of JAX and TensorStore would be missing in the child
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextlib.contextmanager
def _dask_executor(address: str) -> Generator[Executor]:
    try:
        from distributed import Client  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingPackageError(
            "--dask needs Dask, which is not installed here: pip install 'orbit-ckpt[dask]'. Its "
            "workers need orbit-ckpt, of the same version."
        ) from error
    try:
        client = Client(address)
    except OSError as error:
        raise click.BadParameter(f"--dask {address}: no scheduler answers: {error}") from error
    with client:
        yield cast(Executor, client.get_executor())  # pyright: ignore[reportUnknownMemberType] - untyped
