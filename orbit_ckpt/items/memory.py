"""How much host memory a save or a restore may use beyond the tree."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from orbit_ckpt.arrays.memory import available_bytes

_GB = 10**9


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Budgets in bytes, each for one process; None is the default.

    An array larger than a budget is written in parts, chunk by chunk; what cannot be divided is
    admitted alone.

    Attributes:
        write_concurrent_bytes: Most bytes in host memory for writing at once; 2 GiB by default.
        read_concurrent_bytes: Most bytes being read at once. By default 64 MiB per core (128 MiB at
            least, 2 GiB at most) for what is decoded, cast or moved to devices, and no limit on
            what is read straight into the result.
        transfer_concurrent_bytes: Most bytes being copied from devices at once; no limit by
            default. `"auto"` is half of the host memory that is free when the save begins.
    """

    write_concurrent_bytes: int | None = None
    read_concurrent_bytes: int | None = None
    transfer_concurrent_bytes: int | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(getattr(self, field.name), field.name)

    @property
    def max_transfer_bytes(self) -> int | None:
        """`transfer_concurrent_bytes` as a number at this moment."""
        limit = self.transfer_concurrent_bytes
        if isinstance(limit, int) or limit is None:
            return limit
        available = available_bytes()
        return None if available is None else max(1, available // 2)

    @classmethod
    def from_gb(
        cls,
        save: float | None = None,
        restore: float | None = None,
        save_device_host: float | Literal["auto"] | None = None,
    ) -> MemoryOptions:
        """Return the budgets that Orbax's arguments `..._concurrent_gb` set, in units of 10**9.

        Raises:
            ValueError: One is not positive.
        """
        _check(save, "save_concurrent_gb")
        _check(restore, "restore_concurrent_gb")
        _check(save_device_host, "save_device_host_concurrent_gb")
        is_auto = isinstance(save_device_host, str)
        transfer = save_device_host if is_auto else _bytes(save_device_host)
        return cls(_bytes(save), _bytes(restore), transfer)


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else max(1, int(gigabytes * _GB))


def _check(limit: float | str | None, name: str) -> None:
    if limit is None or limit == "auto":
        return
    if isinstance(limit, str) or limit <= 0:
        raise ValueError(f"{name} must be positive, found {limit!r}")
