"""What the processes of `tests.programs` have imported before they are forked.

Nothing here asks JAX for a device or starts a thread, neither of which survives a fork.
"""

from __future__ import annotations

import gc
import importlib
import logging
import pkgutil
import warnings

import flax.linen
import flax.nnx
import flax.training.train_state
import grain
import optax
import orbax.checkpoint
import pytest

import orbit_ckpt
from orbit_ckpt import _src
from tests import preload_s3

IMPORTED = flax, grain, optax, orbax, preload_s3, pytest

for _module in pkgutil.walk_packages(_src.__path__, f"{_src.__name__}."):
    importlib.import_module(_module.name)

for _name in orbit_ckpt.__all__:
    getattr(orbit_ckpt, _name)  # is imported when it is asked for

warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")  # JAX, of what it imports
logging.root.handlers.clear()  # those that packages have added
gc.freeze()  # so that a collection in a child does not copy all of this
