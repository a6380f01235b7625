"""Values that eFormer pickles, read without running a pickle."""

from __future__ import annotations

import pickletools

from msgspec import Struct

_LITERALS = frozenset(
    {
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "FLOAT", "BINFLOAT"),
        *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"),
        *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    }
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_WITHOUT_EFFECT = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"})


class PickledValue(Struct, frozen=True):
    """A value that a checkpoint holds as a pickle, which loading does not run.

    A pickle can do anything when it is loaded; call `pickle.loads(value.data)` only if you trust
    the writer of the checkpoint.

    Attributes:
        data: The pickle.
    """

    data: bytes

    def __repr__(self) -> str:
        return f"PickledValue({len(self.data)} bytes)"


def decode_literal(data: bytes) -> object:
    """Return the number, text, bytes, boolean or None in a pickle, else a `PickledValue`.

    Raises:
        ValueError: It is no pickle.
    """
    values: list[object] = []
    is_literal = True
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _LITERALS:
                values.append(argument)
            elif opcode.name in _CONSTANTS:
                values.append(_CONSTANTS[opcode.name])
            elif opcode.name not in _WITHOUT_EFFECT and opcode.name != "STOP":
                is_literal = False
    except (ValueError, IndexError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise ValueError(f"not a pickle: {error}") from error
    return values[0] if is_literal and len(values) == 1 else PickledValue(bytes(data))
