"""What the package reaches of jaxlib's extension module, whose wheels come without stubs."""

class Client: ...

class Device:
    id: int
    process_index: int
    platform: str
    device_kind: str
