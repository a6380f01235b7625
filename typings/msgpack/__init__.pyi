"""What the package uses of msgpack, whose wheels come without types."""

from collections.abc import Callable

class UnpackException(Exception): ...

def unpackb(
    packed: bytes,
    *,
    ext_hook: Callable[[int, bytes], object] = ...,
    strict_map_key: bool = ...,
) -> object: ...
