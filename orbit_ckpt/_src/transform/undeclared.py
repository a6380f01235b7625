"""What stands in a tree for a leaf that was not read; any use of it is an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from orbit_ckpt._src.errors import TransformError


class Undeclared:
    """Stands for a stored leaf that a function did not declare as its input."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def error(self) -> TransformError:
        """Return what a use of it raises."""
        return TransformError(
            f"{self._name}: multi_value_fn uses this leaf, which was not read because "
            "multi_value_fn_input_args does not name it. Add it there with its RestoreArgs."
        )

    def __repr__(self) -> str:
        return f"<{self._name}, not declared as an input>"

    def __getattr__(self, name: str) -> NoReturn:
        raise self.error()

    def _fail(self, *_: object, **__: object) -> NoReturn:
        raise self.error()

    # operators are looked up on the class, where `__getattr__` does not see them
    __array__ = __bool__ = __int__ = __float__ = __complex__ = __index__ = _fail
    __len__ = __iter__ = __getitem__ = __contains__ = __call__ = _fail
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _fail
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _fail
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __neg__ = __pos__ = __abs__ = _fail
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _fail
    __lt__ = __le__ = __gt__ = __ge__ = _fail


def find_undeclared(leaves: Iterable[object]) -> Undeclared | None:
    """Return the first leaf that was not declared, None if there is none."""
    return next((leaf for leaf in leaves if type(leaf) is Undeclared), None)
