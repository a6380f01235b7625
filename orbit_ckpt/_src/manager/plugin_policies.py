"""Policies of installed packages, by name."""

from __future__ import annotations

from orbit_ckpt._src.manager.preservation import PreservationPolicy
from orbit_ckpt._src.manager.save_policies import SaveDecisionPolicy
from orbit_ckpt._src.plugins import PluginRegistry

Policy = SaveDecisionPolicy | PreservationPolicy
_KINDS = (SaveDecisionPolicy, PreservationPolicy)


def find_policy(name: str) -> Policy:
    """Return the policy that an installed package offers under a name.

    Args:
        name: Name of an entry point of the group `orbit_ckpt.policies`, which is a policy, or a
            class or function that makes one without arguments.

    Raises:
        PluginConflictError: Several packages offer the name, and none is preferred.
        ValueError: None does, or it cannot be used; the log says why.
    """
    found = PLUGINS.named(name)
    if found is None:
        known = ", ".join(PLUGINS.names()) or "none"
        raise ValueError(
            f"No usable policy {name!r} is installed (installed: {known}). `orbit-ckpt plugins` "
            "tells what is wrong with one."
        )
    return found


def _prepare_plugin(plugin: object) -> Policy:
    """Return the policy that a plug-in provides.

    Raises:
        TypeError: It provides something else.
    """
    is_policy = isinstance(plugin, _KINDS) and not isinstance(plugin, type)
    found: object = plugin() if callable(plugin) and not is_policy else plugin
    if not isinstance(found, _KINDS):
        raise TypeError(f"{found!r} has neither should_save() nor should_preserve()")
    return found


PLUGINS = PluginRegistry("orbit_ckpt.policies", _prepare_plugin)
"""Policies of installed packages."""
