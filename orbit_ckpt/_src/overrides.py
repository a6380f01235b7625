"""Detect which methods a subclass overrides.

Some methods stand in for others of their class: `stage` of an item handler for `save`, `plan_reads`
of a type handler for `deserialize`. A subclass that overrides only the other one inherits a method
that no longer agrees with it. Generic code checks this before it calls such a method.
"""

from __future__ import annotations


def is_overridden(owner: object, method: str, *, since: str) -> bool:
    """Return whether a subclass of the class that defines `since` overrides a method.

    Args:
        owner: An object or a class. An attribute of the object itself overrides its class.
        method: The method that may be overridden.
        since: The method that stands in for it.
    """
    return depth_of(owner, method) < depth_of(owner, since)


def depth_of(owner: object, method: str) -> int:
    """Return the MRO index of the class that defines a method.

    -1 for an attribute of the object itself, the length of the MRO if the method does not exist.
    """
    if not isinstance(owner, type) and method in getattr(owner, "__dict__", {}):
        return -1
    classes = (owner if isinstance(owner, type) else type(owner)).__mro__
    found = (depth for depth, cls in enumerate(classes) if method in vars(cls))
    return next(found, len(classes))
