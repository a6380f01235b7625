"""The processes of `jax.distributed`, which meet in its coordination service."""

from __future__ import annotations

from typing import Any

from jax._src.distributed import global_state  # the only way to the coordination service

from orbit_ckpt.runtime.meetings import KeyValueGroup
from orbit_ckpt.runtime.process import ProcessGroup, SingleProcess, this_process


class JaxProcessGroup(KeyValueGroup):
    """The processes of `jax.distributed`."""

    def __init__(self, *, prefix: str = "") -> None:
        """Make the group; `jax.distributed.initialize` must have been called."""
        super().__init__(_CoordinationService(), this_process(), prefix=prefix)


def default_group(prefix: str = "") -> ProcessGroup:
    """Return the processes of `jax.distributed` if there are several, else this one alone."""
    return SingleProcess() if this_process().is_alone else JaxProcessGroup(prefix=prefix)


class _CoordinationService:
    """The key-value store of `jax.distributed`."""

    def __init__(self) -> None:
        state: Any = global_state
        self._client: Any = state.client

    def put(self, key: str, value: bytes) -> None:
        self._client.key_value_set_bytes(key, value, allow_overwrite=True)

    def put_new(self, key: str, value: bytes) -> bool:
        try:
            self._client.key_value_set_bytes(key, value)
        except RuntimeError as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise
        return True

    def get(self, key: str, timeout_s: float) -> bytes | None:
        try:
            return self._client.blocking_key_value_get_bytes(key, max(1, int(timeout_s * 1000)))
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise

    def list(self, folder: str) -> dict[str, bytes]:
        found = self._client.key_value_dir_get_bytes(folder)
        return {key.removeprefix(folder): value for key, value in found}

    def add(self, key: str, amount: int) -> int:
        return self._client.key_value_increment(key, amount)

    def delete(self, key: str) -> None:
        self._client.key_value_delete(key)
