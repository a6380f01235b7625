"""Random keys as items: JAX keys of any implementation, and numpy's global generator state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import is_prng_dtype
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.items.arguments import CheckpointArgs
from orbit_ckpt._src.items.array import ArrayCheckpointHandler, ArrayRestoreArgs, ArraySaveArgs
from orbit_ckpt._src.items.base import ORBAX_PREFIX, CheckpointHandler, item_name
from orbit_ckpt._src.items.composite import Composite, CompositeHandler
from orbit_ckpt._src.items.json import JsonHandler, JsonRestoreArgs, JsonSaveArgs
from orbit_ckpt._src.items.phases import ItemHandler
from orbit_ckpt._src.items.pytree import PyTreeHandler, PyTreeRestoreArgs, PyTreeSaveArgs
from orbit_ckpt._src.runtime.checks import check_type
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.storage.path import PathLike, resolve_path
from orbit_ckpt._src.type_handlers.base import RestoreArgs, SaveArgs
from orbit_ckpt._src.type_handlers.prng import key_data, key_impl, unsupported_key, wrap_keys


class _KeyFiles:
    """A key and a JSON document that describes it, in two directories of an item."""

    def __init__(self, name: str, handler: CheckpointHandler) -> None:
        check_type("key_name", name, str, "a str", "Give the name of a directory.")
        self._key, self._about = name, f"{name}_metadata"
        self._items = CompositeHandler()
        self._items.set_handler(self._key, handler)
        self._items.set_handler(self._about, JsonHandler())

    async def stage(
        self, directory: Path, key: CheckpointArgs, about: Mapping[str, object], *, copy: bool
    ) -> Commit:
        both = Composite(**{self._key: key, self._about: JsonSaveArgs(dict(about))})
        commit = await self._items.stage(directory, both, copy=copy)
        return Commit(commit.run, commit.finalize, lambda: commit.progress)

    def restore(
        self, directory: PathLike, key: CheckpointArgs, field: str
    ) -> tuple[Any, Mapping[str, object]]:
        both = Composite(**{self._key: key, self._about: JsonRestoreArgs()})
        found = self._items.restore(directory, args=both)
        about: dict[str, object] = found[self._about]
        if type(about) is not dict or type(about.get(field)) not in (bool, int):
            raise FormatError(
                f"{resolve_path(directory) / self._about}: expected an object that says whether "
                f"the key is {field!r}, found {about!r}"
            )
        return found[self._key], about


@dataclass
class JaxRandomKeySaveArgs(CheckpointArgs):
    """A JAX key to save, and its options.

    Attributes:
        item: A key or an array of keys, typed or not.
        save_args: Options of its data.
    """

    item: jax.Array
    save_args: SaveArgs | None = None


@dataclass
class JaxRandomKeyRestoreArgs(CheckpointArgs):
    """How to restore a key.

    Attributes:
        restore_args: Sharding of its data.
    """

    restore_args: RestoreArgs | None = None


class JaxRandomKeyHandler(
    ItemHandler[JaxRandomKeySaveArgs],
    save_args=JaxRandomKeySaveArgs,
    restore_args=JaxRandomKeyRestoreArgs,
):
    """Saves and restores a JAX key, typed or not; records the implementation."""

    def __init__(self, key_name: str | None = None) -> None:
        """Make a handler.

        Args:
            key_name: Name of the key's directory; `jax_random_key` by default.
        """
        self._files = _KeyFiles(key_name or "jax_random_key", ArrayCheckpointHandler())

    @classmethod
    def typestr(cls) -> str:
        """Return the name that checkpoints record; Orbax's own."""
        return f"{ORBAX_PREFIX}random_key_checkpoint_handler.JaxRandomKeyCheckpointHandler"

    @override
    async def stage(self, directory: Path, args: JaxRandomKeySaveArgs, *, copy: bool) -> Commit:
        """Copy the key.

        Raises:
            TypeError: It is not a JAX array.
            ValueError: Its implementation has no registered name.
        """
        key = cast(object, args.item)
        if not isinstance(key, jax.Array):
            raise TypeError(
                f"{item_name(directory)}: expected a key of JAX, found {type(key).__name__}"
            )
        about: dict[str, object] = {"typed": is_prng_dtype(key.dtype)}
        if about["typed"]:
            reason = unsupported_key(key)
            if reason is not None:
                raise ValueError(f"{item_name(directory)}: the key cannot be saved: {reason}")
            about["impl"] = key_impl(key)
            key = key_data(key)
        return await self._files.stage(
            directory, ArraySaveArgs(key, args.save_args), about, copy=copy
        )

    @override
    def restore(
        self, directory: PathLike, args: JaxRandomKeyRestoreArgs | None = None
    ) -> jax.Array:
        """Read a key.

        Raises:
            CheckpointNotFoundError: The directory holds no key.
            FormatError: Its description is not understood.
        """
        restore_args = args.restore_args if args is not None else None
        key, about = self._files.restore(
            directory, ArrayRestoreArgs(restore_args=restore_args), "typed"
        )
        if not about["typed"]:
            return key
        # Orbax does not record the implementation and uses the default one
        impl = about.get("impl")
        default = cast(str, jax.config.jax_default_prng_impl)
        return wrap_keys(key, impl if isinstance(impl, str) else default)


@dataclass
class NumpyRandomKeySaveArgs(CheckpointArgs):
    """A generator state to save.

    Attributes:
        item: Result of `np.random.get_state`.
    """

    item: tuple[str, np.ndarray, int, int, float] | dict[str, Any]


@dataclass
class NumpyRandomKeyRestoreArgs(CheckpointArgs):
    """How to restore a state; it has no options."""


class NumpyRandomKeyHandler(
    ItemHandler[NumpyRandomKeySaveArgs],
    save_args=NumpyRandomKeySaveArgs,
    restore_args=NumpyRandomKeyRestoreArgs,
):
    """Saves and restores the result of `np.random.get_state`, a tuple or a dict."""

    def __init__(self, key_name: str | None = None) -> None:
        """Make a handler.

        Args:
            key_name: Name of the state's directory; `np_random_key` by default.
        """
        self._files = _KeyFiles(key_name or "np_random_key", PyTreeHandler())

    @classmethod
    def typestr(cls) -> str:
        """Return the name that checkpoints record; Orbax's own."""
        return f"{ORBAX_PREFIX}random_key_checkpoint_handler.NumpyRandomKeyCheckpointHandler"

    @override
    async def stage(self, directory: Path, args: NumpyRandomKeySaveArgs, *, copy: bool) -> Commit:
        """Copy the state.

        Raises:
            TypeError: It is neither a tuple nor a dict.
        """
        state = cast(object, args.item)
        if not isinstance(state, tuple | dict):
            raise TypeError(
                f"{item_name(directory)}: expected what np.random.get_state returns, found "
                f"{type(state).__name__}"
            )
        about = {"legacy": isinstance(state, tuple)}
        tree = PyTreeSaveArgs(cast(object, state))
        return await self._files.stage(directory, tree, about, copy=copy)

    @override
    def restore(
        self,
        directory: PathLike,
        args: NumpyRandomKeyRestoreArgs | None = None,
    ) -> tuple[Any, ...] | dict[str, Any]:
        """Read a state for `np.random.set_state`.

        Raises:
            CheckpointNotFoundError: The directory holds no state.
            FormatError: Its description is not understood.
        """
        state, about = self._files.restore(directory, PyTreeRestoreArgs(), "legacy")
        return tuple(state) if about["legacy"] else state
