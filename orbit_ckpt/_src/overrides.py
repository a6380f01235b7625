"""Find out what a subclass overrides.

Some methods answer for others of their class: `stage` of an item handler saves what `save` would
have saved, `plan_reads` of a type handler lists what `deserialize` would read. A subclass inherits
such a method even if it overrides the other one, and the two no longer agree. Generic code asks
here before it relies on one.
"""

from __future__ import annotations


def is_overridden(owner: object, method: str, *, since: str) -> bool:
    """Whether a method is overridden by a subclass of the class that defines another method.

    Args:
        owner: An object or a class. An attribute of the object itself overrides its class.
        method: The method that may be overridden.
        since: The method that answers for it.
    """
    return depth_of(owner, method) < depth_of(owner, since)


def depth_of(owner: object, method: str) -> int:
    """Return how many classes are searched before the definition of a method is found.

    It is -1 for an attribute of the object itself, and the number of classes if there is none.
    """
    if not isinstance(owner, type) and method in getattr(owner, "__dict__", {}):
        return -1
    classes = (owner if isinstance(owner, type) else type(owner)).__mro__
    found = (depth for depth, cls in enumerate(classes) if method in vars(cls))
    return next(found, len(classes))
