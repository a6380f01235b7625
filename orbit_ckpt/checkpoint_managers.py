"""Policies under the names of Orbax's module of the same name; see `policies`."""

from orbit_ckpt import policies
from orbit_ckpt import policies as preservation_policy
from orbit_ckpt import policies as save_decision_policy
from orbit_ckpt.policies import *  # noqa: F403 - all of them, here too

__all__ = ["preservation_policy", "save_decision_policy"]
__all__ += policies.__all__
