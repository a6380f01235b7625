"""How much host memory a save or a restore may use beyond the tree."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from orbit_ckpt._src.arrays.memory import available_bytes
from orbit_ckpt._src.runtime.checks import check_int, check_number

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
            limit: object = getattr(self, field.name)
            is_auto = limit == "auto" and field.name == "transfer_concurrent_bytes"
            if limit is not None and not is_auto:
                check_int(field.name, limit, least=1)

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
            TypeError: One is no number.
        """
        _check("save_concurrent_gb", save)
        _check("restore_concurrent_gb", restore)
        if save_device_host != "auto":
            _check("save_device_host_concurrent_gb", save_device_host)
        is_auto = isinstance(save_device_host, str)
        transfer = save_device_host if is_auto else _bytes(save_device_host)
        return cls(_bytes(save), _bytes(restore), transfer)


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else max(1, int(gigabytes * _GB))


def _check(name: str, gigabytes: object) -> None:
    if gigabytes is not None:
        check_number(name, gigabytes, can_be_zero=False)
