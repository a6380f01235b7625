"""Handlers as users of Orbax write them; the tests also load this file with orbit_ckpt as `ocp`."""

import asyncio
import dataclasses
import pickle
from collections.abc import Callable
from concurrent import futures
from decimal import Decimal
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.future as future  # noqa: PLR0402 - as openpi writes it
from etils import epath


@dataclasses.dataclass
class Ragged:
    """Rows of unequal length."""

    rows: list[list[float]]


class RaggedHandler(ocp.type_handlers.NumpyHandler):
    """Stores rows as one padded array."""

    def typestr(self) -> str:
        return "Ragged"

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        return await super().serialize([self._pad(value) for value in values], infos, args)

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        arrays = await super().deserialize(infos, args)
        return [Ragged([row[~np.isnan(row)].tolist() for row in array]) for array in arrays]

    def _pad(self, value: Ragged) -> np.ndarray:
        width = max((len(row) for row in value.rows), default=0)
        padded = np.full((len(value.rows), width), np.nan)
        for i, row in enumerate(value.rows):
            padded[i, : len(row)] = row
        return padded


class PriceHandler(ocp.type_handlers.ScalarHandler):
    """Stores a price as whole cents."""

    def typestr(self) -> str:
        return "Price"

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        return await super().serialize([int(value * 100) for value in values], infos, args)

    async def deserialize(self, infos: Any, args: Any = None) -> Any:  # noqa: ARG002 - the type is known
        cents: Any = await super().deserialize(infos)
        return [Decimal(value) / 100 for value in cents]


class DateHandler(ocp.type_handlers.ScalarHandler):
    """Stores a date as its number of days."""

    def typestr(self) -> str:
        return "np.datetime64"

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        days = [int(value.astype("datetime64[D]").astype(np.int64)) for value in values]
        return await super().serialize(days, infos, args)

    async def deserialize(self, infos: Any, args: Any = None) -> Any:  # noqa: ARG002 - as above
        days: Any = await super().deserialize(infos)
        return [np.datetime64(value, "D") for value in days]


class PickleHandler(ocp.CheckpointHandler):
    """Pickles an item; it has no argument classes."""

    def save(self, directory: Any, item: Any) -> None:
        (directory / "item.pkl").write_bytes(pickle.dumps(item))

    def restore(self, directory: Any, item: Any = None) -> Any:  # noqa: ARG002 - checkpointers give it
        return pickle.loads((directory / "item.pkl").read_bytes())  # noqa: S301 - written by a test

    def structure(self, directory: Any) -> Any:
        raise NotImplementedError


class CallbackHandler(ocp.AsyncCheckpointHandler):
    """Calls a function that writes into the directory of its item."""

    def save(self, directory: epath.Path, args: "CallbackSave") -> None:
        if jax.process_index() == 0:
            args.callback(directory)

    async def async_save(self, directory: epath.Path, args: "CallbackSave") -> list[Any]:
        writing = asyncio.to_thread(self.save, directory, args)
        return [future.CommitFutureAwaitingContractedSignals(writing)]

    def restore(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("CallbackHandler does not support restore")


@ocp.args.register_with_handler(CallbackHandler, for_save=True)
@dataclasses.dataclass
class CallbackSave(ocp.args.CheckpointArgs):
    callback: Callable[[epath.Path], None]


@ocp.args.register_with_handler(CallbackHandler, for_restore=True)
class CallbackRestore(ocp.args.CheckpointArgs): ...


class NotesHandler(ocp.AsyncCheckpointHandler):
    """Writes a text in a thread of its own."""

    def __init__(self) -> None:
        self._executor = futures.ThreadPoolExecutor(max_workers=1)

    async def async_save(self, directory: epath.Path, args: "NotesSave") -> list[Any]:
        return [self._executor.submit((directory / "notes.txt").write_text, args.text)]

    def save(self, directory: epath.Path, args: "NotesSave") -> None:
        async def save_and_wait() -> None:
            for commit in await self.async_save(directory, args):
                commit.result()

        asyncio.run(save_and_wait())

    def restore(self, directory: epath.Path, args: "NotesRestore | None" = None) -> str:  # noqa: ARG002 - it has no fields
        return (directory / "notes.txt").read_text()

    def close(self) -> None:
        self._executor.shutdown()


@ocp.args.register_with_handler(NotesHandler, for_save=True)
@dataclasses.dataclass
class NotesSave(ocp.args.CheckpointArgs):
    text: str


@ocp.args.register_with_handler(NotesHandler, for_restore=True)
@dataclasses.dataclass
class NotesRestore(ocp.args.CheckpointArgs): ...
