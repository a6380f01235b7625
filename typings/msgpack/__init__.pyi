"""What the package uses of msgpack, whose wheels come without types."""

from collections.abc import Callable

class UnpackException(Exception): ...  # noqa: N818 - its name

def unpackb(
    packed: bytes,
    *,
    ext_hook: Callable[[int, bytes], object] = ...,
    strict_map_key: bool = ...,
) -> object: ...
