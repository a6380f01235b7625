"""Contracts, strategies and fakes for the tests of plug-ins and programs.

Subclass a contract in your tests, give it your plug-in and some values, and pytest runs all tests
that the plug-ins of this package pass. Needs `pip install 'orbit-ckpt[testing]'`.
"""

from __future__ import annotations

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
