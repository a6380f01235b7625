"""Scan one of Flax's msgpack files without reading its arrays.

Only headers are read. Every length is compared with the rest of the file before memory is
allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgpack
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType, as_dtype, storable
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.formats.flax_msgpack.tree import ArrayNode, BytesNode, ObjectNode, with_values
from orbit_ckpt._src.guards import is_list
from orbit_ckpt._src.storage.foreign import check_shape
from orbit_ckpt._src.storage.layout import Extent, Value
from orbit_ckpt._src.storage.store_path import open_extents
from orbit_ckpt._src.storage.value_read import Pieces

NDARRAY, COMPLEX, SCALAR, TUPLE = 1, 2, 3, 4
"""Codes of extension types; Orbax added the last one."""

SUFFIX = ".msgpack"
CHUNKED = "__msgpack_chunked_array__"

_MAX_DEPTH = 200
_MAX_DIMENSIONS = 64
_WINDOW_BYTES = 1 << 12
_RUN = 64
"""Minimum length of a list to decode in bulk."""

_RUN_BYTES = 1 << 16
_TIMESTAMP = -1
"""The extension type that msgpack itself defines."""


class _Head(Struct, frozen=True, gc=False):
    """The header of a value: its kind, and its length or the value itself."""

    kind: str
    value: Any
    code: int = 0


def scan_file(file: Path) -> object:
    """Return the tree in a file: dicts, lists, tuples, scalars, None, and nodes for arrays.

    Raises:
        FormatError: It is truncated, damaged, or holds something that Flax does not write.
        OSError: It cannot be read.
    """
    where = f"{file} is not a sound msgpack file of Flax"
    with open_extents(file) as (read, size):
        return _scan(_File(str(file), size, read), where)


def scan_bytes(data: bytes, where: str) -> object:
    """Return the tree in bytes in memory, with the values of its arrays.

    Args:
        data: The bytes.
        where: Where the bytes are from, to begin error messages with.

    Raises:
        FormatError: They are truncated, damaged, or hold something that Flax does not write.
    """
    return with_values(_scan(_Memory(data, len(data)), where))


def _scan(source: _File | _Memory, where: str) -> object:
    scanner = _Scanner(source)
    try:
        return scanner.scan_all()
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise FormatError(
            f"{where}: byte {scanner.position}: {error}. It is damaged or incomplete, or was "
            "written by something else; copy it again."
        ) from error


class _File:
    """Bytes in a file, read a window at a time."""

    def __init__(self, file: str, size: int, read: Callable[[int, int], bytes]) -> None:
        self.size = size
        self._file = file
        self._read = read
        self._window = b""
        self._start = 0

    def read(self, start: int, length: int) -> bytes:
        offset = start - self._start
        if not 0 <= offset <= len(self._window) - length:
            self._window = self._read(start, max(length, _WINDOW_BYTES))
            self._start, offset = start, 0
        return self._window[offset : offset + length]

    def place(self, start: int, length: int) -> Value:
        return Extent(self._file, start, length)


class _Memory(Struct, frozen=True, gc=False):
    """Bytes in memory."""

    data: bytes
    size: int

    def read(self, start: int, length: int) -> bytes:
        return self.data[start : start + length]

    place = read


class _Scanner:
    """Decodes bytes value by value."""

    def __init__(self, source: _File | _Memory) -> None:
        self.position = 0
        self.size = source.size
        self._source = source

    def scan_all(self) -> object:
        """Return the file's only value."""
        value = self.scan(self.size, 0)
        if self.position != self.size:
            raise ValueError(f"{self.size - self.position} bytes follow what should be all of it")
        return value

    def scan(self, end: int, depth: int) -> object:
        """Return the value at the current position, and advance to its end.

        Args:
            end: Upper bound of the value's end.
            depth: Its nesting depth.
        """
        if depth > _MAX_DEPTH:
            raise ValueError(f"more than {_MAX_DEPTH} levels")
        head = self._head(end)
        if head.kind == "value":
            return head.value
        if head.kind == "str":
            return self._text(head.value, end)
        if head.kind == "bin":
            return BytesNode(self._skip(head.value, end))
        if head.kind == "ext":
            return self._extension(head.code, self._inside(head.value, end), depth)
        if head.value > end - self.position:
            raise ValueError(f"{head.value} elements in {end - self.position} bytes")
        if head.kind == "array":
            return self._list(head.value, end, depth)
        return _join_chunks(self._map(head.value, end, depth))

    def _list(self, count: int, end: int, depth: int) -> list[object]:
        found: list[object] = []
        while len(found) < count:
            missing = count - len(found)
            run = self._small_values(missing, end)
            found += run or [self.scan(end, depth + 1) for _ in range(min(missing, _RUN))]
        return found

    def _small_values(self, count: int, end: int) -> list[object]:
        """Decode up to `count` numbers and short strings that follow.

        Pays off for many values only: the setup costs as much as decoding a few.
        """
        nbytes = min(_RUN_BYTES, end - self.position)
        if count < _RUN or nbytes <= _SMALL_BYTES:
            return []
        data = self._source.read(self.position, nbytes)
        unpacker = msgpack.Unpacker(max_buffer_size=_RUN_BYTES)
        unpacker.feed(data)
        found: list[object] = []
        start, last = 0, nbytes - _SMALL_BYTES  # values that begin before `last` are complete
        while len(found) < count and start < last and data[start] in _SMALL:
            found.append(unpacker.unpack())
            start = unpacker.tell()
        self.position += start
        return found

    def _key(self, end: int) -> object:
        head = self._head(end)
        if head.kind == "str":
            return self._text(head.value, end)
        if head.kind == "bin":
            return self._read_bytes(head.value, end)
        if head.kind != "value":
            raise ValueError(f"a key of a dict is a msgpack {head.kind}, no str, bytes or number")
        return head.value

    def _map(self, count: int, end: int, depth: int) -> dict[object, object]:
        found: dict[object, object] = {}
        missing = count
        while missing:
            flat = self._small_values(2 * missing, end)
            if len(flat) % 2:  # a key whose value is large
                flat.append(self.scan(end, depth + 1))
            for _ in range(0 if len(flat) > 2 else min(missing - len(flat) // 2, _RUN)):
                flat += [self._key(end), self.scan(end, depth + 1)]
            for key, value in zip(flat[::2], flat[1::2], strict=True):
                if key in found:
                    raise ValueError(f"a dict has the key {key!r} twice")
                found[key] = value
            missing -= len(flat) // 2
        return found

    def _extension(self, code: int, end: int, depth: int) -> object:
        if code in (NDARRAY, SCALAR):
            value = self._array(end, is_scalar=code == SCALAR)
        elif code in (COMPLEX, TUPLE):
            value = self.scan(end, depth + 1)
            if not is_list(value):
                raise ValueError(f"extension type {code} does not hold a list")
            elements: list[Any] = value
            value = complex(*elements) if code == COMPLEX else tuple(elements)
        else:
            data = self._read_bytes(end - self.position, end)
            is_time = code == _TIMESTAMP
            value = ObjectNode(
                msgpack.Timestamp.from_bytes(data) if is_time else msgpack.ExtType(code, data)
            )
        if self.position != end:
            raise ValueError(f"extension type {code} is longer than its value")
        return value

    def _array(self, end: int, *, is_scalar: bool) -> ArrayNode:
        outer, inner = self._head(end), self._head(end)
        is_array = (outer.kind, outer.value, inner.kind) == ("array", 3, "array")
        if not is_array or inner.value > _MAX_DIMENSIONS:
            raise ValueError("an array without shape, dtype and elements")
        lengths = [self._head(end).value for _ in range(inner.value)]
        if not all(type(n) is int for n in lengths):
            raise ValueError(f"shape {str(lengths)[:80]}")
        name = self._head(end)
        if name.kind not in ("str", "bin"):
            raise ValueError("an array without the name of its dtype")
        dtype = _parse_dtype(self._text(name.value, end))
        data = self._head(end)
        if data.kind != "bin":
            raise ValueError("an array without elements")
        check_shape(tuple(lengths), dtype.itemsize)
        node = ArrayNode(tuple(lengths), dtype, self._skip(data.value, end), is_scalar)
        if _nbytes(node.shape, dtype) != data.value or (is_scalar and node.shape):
            raise ValueError(f"{dtype} of shape {node.shape} does not have {data.value} bytes")
        return node

    def _head(self, end: int) -> _Head:
        """Read the header of a value; afterwards the position is that of its contents."""
        byte = self._read_bytes(1, end)[0]
        if byte in _FIXED:
            return _Head("value", _FIXED[byte])
        if byte < 0x80 or byte >= 0xE0:
            return _Head("value", byte if byte < 0x80 else byte - 0x100)
        if byte < 0xC0:
            kind, mask = (
                ("map", 15) if byte < 0x90 else ("array", 15) if byte < 0xA0 else ("str", 31)
            )
            return _Head(kind, byte & mask)
        if byte not in _FORMS:
            raise ValueError(f"no msgpack: {byte:#x}")
        kind, form = _FORMS[byte]
        length = form if isinstance(form, int) else self._number(form, end)
        return _Head(kind, length, self._number(">b", end) if kind == "ext" else 0)

    def _number(self, form: str, end: int) -> Any:
        return struct.unpack(form, self._read_bytes(struct.calcsize(form), end))[0]

    def _text(self, length: int, end: int) -> str:
        return self._read_bytes(length, end).decode()

    def _inside(self, length: int, end: int) -> int:
        """Return the end of a value of a length."""
        if length > end - self.position:
            raise ValueError(f"{length} bytes are announced, there are {end - self.position}")
        return self.position + length

    def _skip(self, length: int, end: int) -> Value:
        start, self.position = self.position, self._inside(length, end)
        return self._source.place(start, length)

    def _read_bytes(self, length: int, end: int) -> bytes:
        """Return the next bytes."""
        start, self.position = self.position, self._inside(length, end)
        found = self._source.read(start, length)
        if len(found) != length:
            raise ValueError("the file has become shorter")
        return found


_FIXED: Mapping[int, object] = {0xC0: None, 0xC2: False, 0xC3: True}

_SHORT = ("str", ">B")

_FORMS: Mapping[int, tuple[str, str | int]] = {
    0xC4: ("bin", ">B"),
    0xC5: ("bin", ">H"),
    0xC6: ("bin", ">I"),
    0xC7: ("ext", ">B"),
    0xC8: ("ext", ">H"),
    0xC9: ("ext", ">I"),
    0xCA: ("value", ">f"),
    0xCB: ("value", ">d"),
    0xCC: ("value", ">B"),
    0xCD: ("value", ">H"),
    0xCE: ("value", ">I"),
    0xCF: ("value", ">Q"),
    0xD0: ("value", ">b"),
    0xD1: ("value", ">h"),
    0xD2: ("value", ">i"),
    0xD3: ("value", ">q"),
    0xD4: ("ext", 1),
    0xD5: ("ext", 2),
    0xD6: ("ext", 4),
    0xD7: ("ext", 8),
    0xD8: ("ext", 16),
    0xD9: ("str", ">B"),
    0xDA: ("str", ">H"),
    0xDB: ("str", ">I"),
    0xDC: ("array", ">H"),
    0xDD: ("array", ">I"),
    0xDE: ("map", ">H"),
    0xDF: ("map", ">I"),
}
"""Kind of value by first byte, and the format of its number or length, or a fixed length."""


_SMALL = frozenset(
    {*range(0x80), *range(0xA0, 0xC0), *range(0xE0, 0x100), *_FIXED}
    | {code for code, (kind, form) in _FORMS.items() if kind == "value" or (kind, form) == _SHORT}
)
"""First bytes of numbers, booleans, None and strings of up to 255 bytes."""

_SMALL_BYTES = 257
"""Size of the largest of these values, with its header."""


def _parse_dtype(name: str) -> DType:
    dtype = as_dtype("bfloat16" if name == "V2" else name)  # Flax before 0.4 writes V2
    if not storable(dtype):
        raise ValueError(f"arrays of dtype {name!r} cannot be read")
    return dtype.newbyteorder("<")


def _nbytes(shape: Shape, dtype: DType) -> int:
    nbytes = dtype.itemsize
    for n in shape:
        nbytes *= n
    return nbytes


def _join_chunks(fields: dict[object, object]) -> object:
    """Join an array that Flax split because msgpack limits the size of a value."""
    if CHUNKED not in fields:
        return fields
    lengths, chunks = _ordered(fields["shape"]), _ordered(fields["chunks"])
    parts = [chunk for chunk in chunks if isinstance(chunk, ArrayNode)]
    if not parts or len(parts) < len(chunks):
        raise ValueError("an array in parts that are not arrays")
    dtype = parts[0].dtype
    shape = tuple(n for n in lengths if type(n) is int)
    if len(shape) < len(lengths):
        raise ValueError(f"shape {str(tuple(lengths))[:80]}")
    check_shape(shape, dtype.itemsize)
    is_whole = _nbytes(shape, dtype) == sum(_nbytes(part.shape, part.dtype) for part in parts)
    if not is_whole or any(part.dtype != dtype for part in parts):
        raise ValueError(f"the parts of an array are not those of {dtype} and shape {shape}")
    values = [part.value for part in parts]
    extents = [value for value in values if isinstance(value, Extent)]
    value = Pieces.of(extents) if extents else b"".join(v for v in values if isinstance(v, bytes))
    return ArrayNode(shape, dtype, value)


def _ordered(value: object) -> list[object]:
    """Return the elements of a list, which Flax writes as a dict with positions as keys."""
    fields = cast(Mapping[str, object], value)
    return [fields[str(i)] for i in range(len(fields))]


def begins_tree(data: bytes) -> bool:
    """Return whether a file's first bytes start a dict whose first key is a str, or an array.

    Keys of other types are only accepted in files with one of Flax's names, because files of other
    formats may begin with the same bytes.
    """
    sizes = {0xDE: 3, 0xDF: 5}
    if not data:
        return False
    if 0x80 <= data[0] < 0x90 or data[0] in sizes:
        key = data[sizes.get(data[0], 1) :][:1]
        return data == b"\x80" or (bool(key) and (0xA0 <= key[0] < 0xC0 or key[0] in (0xD9, 0xDA)))
    codes = {0xC7: 2, 0xC8: 3, 0xC9: 5, 0xD4: 1, 0xD5: 1, 0xD6: 1, 0xD7: 1, 0xD8: 1}
    code = data[codes[data[0]] :][:1] if data[0] in codes else b""
    return code in (b"\x01", b"\x03", b"\x04")
