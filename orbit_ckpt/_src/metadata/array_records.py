"""Records of arrays: Orbax's `array_metadatas/process_<i>`; unknown fields are ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.metadata.codec import decode_json, encode_json

RANDOM_KEY_IMPL = "random_key_impl"


class ArrayRecord(Struct, frozen=True, gc=False):
    """One JAX array in `array_metadatas/process_<i>`.

    Attributes:
        name: Storage name.
        write_shape: Shape of the part that one device wrote.
        chunk_shape: Shape of its chunks.
        random_key_impl: PRNG implementation if the array holds the data of typed keys.
        shape: Its shape; recorded when several processes save, which compare their records.
        dtype: Name of its stored dtype; as above.
        extra: A JSON object that its type handler records, None without one.
    """

    name: str
    write_shape: Shape
    chunk_shape: Shape
    random_key_impl: str | None = None
    shape: Shape | None = None
    dtype: str | None = None
    extra: Mapping[str, object] | None = None

    @property
    def param_name(self) -> str:
        """Orbax's name of `name`."""
        return self.name

    @property
    def ext_metadata(self) -> dict[str, object] | None:
        """The JSON object of the type handler and the PRNG implementation, under Orbax's name."""
        keys = {} if self.random_key_impl is None else {RANDOM_KEY_IMPL: self.random_key_impl}
        return {**(self.extra or {}), **keys} or None


def encode_arrays(records: Sequence[ArrayRecord]) -> bytes:
    """Encode the document that lists arrays."""
    rows = [
        _ArrayRow(
            _Array(
                r.name,
                r.write_shape,
                r.chunk_shape,
                r.ext_metadata,
                UNSET if r.shape is None else r.shape,
                UNSET if r.dtype is None else r.dtype,
            )
        )
        for r in records
    ]
    return encode_json(_Arrays(rows))


def decode_arrays(data: bytes, where: str) -> list[ArrayRecord]:
    """Decode the document that lists arrays.

    Raises:
        FormatError: A field is missing or has a wrong type.
    """
    # a list, every entry of which names its array
    rows = decode_json(data, _Arrays, where, repeats=True).array_metadatas
    return [_record_of(row.array_metadata, where) for row in rows]


def _record_of(array: _Array, where: str) -> ArrayRecord:
    extra = array.ext_metadata or {}
    impl = extra.pop(RANDOM_KEY_IMPL, None)
    if impl is not None and not isinstance(impl, str):
        raise FormatError(
            f"{where}: {array.param_name}: {RANDOM_KEY_IMPL} is {impl!r}, which is no str. The "
            "file is damaged."
        )
    return ArrayRecord(
        array.param_name,
        array.write_shape,
        array.chunk_shape,
        impl,
        None if array.shape is UNSET else array.shape,
        None if array.dtype is UNSET else array.dtype,
        extra or None,
    )


class _Array(Struct):
    param_name: str
    write_shape: Shape
    chunk_shape: Shape
    ext_metadata: dict[str, Any] | None = None
    shape: Shape | UnsetType | None = UNSET
    dtype: str | UnsetType | None = UNSET


class _ArrayRow(Struct):
    array_metadata: _Array


class _Arrays(Struct):
    array_metadatas: list[_ArrayRow]
