"""Contracts, strategies and fakes for the tests of plug-ins and programs.

Subclass a contract in your tests, give it your plug-in and some values, and pytest runs all tests
that the plug-ins of this package pass. Needs `pip install 'orbit-ckpt[testing]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from orbit_ckpt.testing.clients import ObjectClientContract
    from orbit_ckpt.testing.comparison import expect_same, is_same
    from orbit_ckpt.testing.fakes import fake_processes
    from orbit_ckpt.testing.formats import FormatContract, WritableFormatContract
    from orbit_ckpt.testing.item_handlers import ItemHandlerContract
    from orbit_ckpt.testing.policies import (
        PolicyContract,
        PreservationPolicyContract,
        SavePolicyContract,
        sample_histories,
    )
    from orbit_ckpt.testing.promises import PromiseBrokenError, expect, promised
    from orbit_ckpt.testing.several_processes import SeveralProcessesContract
    from orbit_ckpt.testing.spoiling import spoil
    from orbit_ckpt.testing.stores import StoreContract
    from orbit_ckpt.testing.type_handlers import TypeHandlerContract

__all__ = [
    "FormatContract",
    "ItemHandlerContract",
    "ObjectClientContract",
    "PolicyContract",
    "PreservationPolicyContract",
    "PromiseBrokenError",
    "SavePolicyContract",
    "SeveralProcessesContract",
    "StoreContract",
    "TypeHandlerContract",
    "WritableFormatContract",
    "expect",
    "expect_same",
    "fake_processes",
    "is_same",
    "promised",
    "sample_histories",
    "spoil",
]

_NAMES = {
    "clients": "ObjectClientContract",
    "comparison": "expect_same, is_same",
    "fakes": "fake_processes",
    "formats": "FormatContract, WritableFormatContract",
    "item_handlers": "ItemHandlerContract",
    "policies": (
        "PolicyContract, PreservationPolicyContract, sample_histories, SavePolicyContract"
    ),
    "promises": "PromiseBrokenError, expect, promised",
    "several_processes": "SeveralProcessesContract",
    "spoiling": "spoil",
    "stores": "StoreContract",
    "type_handlers": "TypeHandlerContract",
}

# lazy, because scripts that the chaos kit runs import its hook before anything else
__getattr__ = lazy_getattr(
    globals(),
    {
        name: f"orbit_ckpt.testing.{module}:{name}"
        for module, names in _NAMES.items()
        for name in names.split(", ")
    },
)
