"""The contract of type handlers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import pytest
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt._src.type_handlers.base import TypeHandler
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY
from orbit_ckpt.testing.promises import expect, promised
from orbit_ckpt.testing.saved import SavedContract
from orbit_ckpt.testing.watching import calls_of


class TypeHandlerContract(SavedContract):
    """Tests of a type handler; subclass it as a class whose name begins with `Test`.

    Example:
        ```python
        class TestPointHandler(TypeHandlerContract):
            def handler(self):
                return PointHandler()

            def values(self):
                return [Point(1.0, 2.0), Point(0.0, -0.0)]
        ```
    """

    def handler(self) -> TypeHandler:
        """Return a new handler."""
        raise NotImplementedError

    def values(self) -> Sequence[object]:
        """Return at least two different leaves, newly made and the same every time.

        Include the odd ones: empty, without dimensions, not contiguous, of every dtype.
        """
        raise NotImplementedError

    def types(self) -> Sequence[type]:
        """Return the types to register the handler for; by default those of the values."""
        values = self.values()
        found = dict.fromkeys(jax.Array if isinstance(v, jax.Array) else type(v) for v in values)
        return list(found)

    @pytest.fixture(autouse=True)
    def registered(self) -> Iterator[TypeHandler]:
        """The handler, registered in the default registry for one test."""
        handler = self.handler()
        with GLOBAL_TYPE_HANDLER_REGISTRY.scope():
            for ty in self.types():
                GLOBAL_TYPE_HANDLER_REGISTRY.add(ty, handler, override=True)
            yield handler

    @override
    def contents(self) -> Sequence[dict[str, object]]:
        values = self.values()
        return [_tree(values), _tree([*values[1:], values[0]])]

    @override
    def save(self, path: Path, content: object, *, overwrite: bool = False) -> None:
        ocp.save(path, content, overwrite=overwrite)

    @override
    def save_as_files(self, path: Path, content: object) -> None:
        ocp.PyTreeCheckpointer(use_ocdbt=False).save(path, content)

    @override
    def load(self, path: Path) -> object:
        return ocp.load(path)

    @promised
    def test_finalize_is_called_once_before_the_commit(
        self, registered: TypeHandler, tmp_path: Path
    ) -> None:
        """Finalize is called once for each save, before the checkpoint appears."""
        with calls_of(registered, "finalize") as calls:
            ocp.save(tmp_path / "a", self.contents()[0])
        expect(len(calls) == 1, found=f"{len(calls)} calls", expected="one")


def _tree(values: Sequence[object]) -> dict[str, object]:
    return {f"v{i}": value for i, value in enumerate(values)}
