from collections.abc import Iterable

class PyTreeDef:
    num_leaves: int
    def flatten_up_to(self, tree: object, /) -> list[object]: ...
    def node_data(self) -> tuple[type, object] | None: ...
    def children(self) -> list[PyTreeDef]: ...

class PyTreeRegistry:
    def flatten_one_level(self, tree: object) -> tuple[Iterable[object], object] | None: ...
    def flatten_one_level_with_keys(
        self, tree: object
    ) -> tuple[Iterable[tuple[object, object]], object] | None: ...

def default_registry() -> PyTreeRegistry: ...

class SequenceKey:
    idx: int
    __match_args__ = ("idx",)
    def __init__(self, idx: int) -> None: ...

class DictKey:
    key: object
    __match_args__ = ("key",)
    def __init__(self, key: object) -> None: ...

class GetAttrKey:
    name: str
    __match_args__ = ("name",)
    def __init__(self, name: str) -> None: ...

class FlattenedIndexKey:
    key: int
    __match_args__ = ("key",)
    def __init__(self, key: int) -> None: ...
