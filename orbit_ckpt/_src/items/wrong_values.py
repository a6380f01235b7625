"""Errors for arguments of item handlers that are of the wrong type."""

from __future__ import annotations

from orbit_ckpt._src.items.memory import MemoryOptions
from orbit_ckpt._src.runtime.checks import check_methods, check_type, show


def check_objects(memory: object, registry: object, recorded: object) -> None:
    """Check the arguments of a handler of trees that are objects.

    Raises:
        TypeError: One is something else, such as its class.
    """
    limits = "Give MemoryOptions(read_concurrent_bytes=2**30), for example."
    check_type("memory_options", memory, MemoryOptions, "a MemoryOptions", limits)
    types = "Give that of type_handlers.create_type_handler_registry(...), or leave it out."
    check_methods("type_handler_registry", registry or object, ["get", "has"], types)
    options = "Give PyTreeMetadataOptions(support_rich_types=True), or leave it out."
    if isinstance(recorded, type) or not hasattr(recorded, "support_rich_types"):
        raise TypeError(
            f"pytree_metadata_options must be a PyTreeMetadataOptions, found {show(recorded)}. "
            f"{options}"
        )
