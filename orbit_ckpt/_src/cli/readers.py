"""Parse `--reader`, a format with its options, and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args

import click

from orbit_ckpt._src.formats.base import Format

if TYPE_CHECKING:
    from orbit_ckpt._src.arrays.dtypes import DType


_FLAGS = {"true": True, "false": False}

_Reader = tuple[Callable[..., Format], Mapping[str, Callable[[str], object]]]


def _choice(choices: Mapping[str, object]) -> Callable[[str], object]:
    def parse(text: str) -> object:
        if text not in choices:
            raise ValueError(f"give {' or '.join(choices)}")
        return choices[text]

    return parse


def _step(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("give a number")
    return int(text)


def _readers() -> Mapping[str, _Reader]:
    """Return the formats by name, with their options."""
    from orbit_ckpt._src.formats.t5x.read import T5XFormat  # noqa: PLC0415 - imports JAX
    from orbit_ckpt._src.formats.t5x.spec import Uint16  # noqa: PLC0415 - as above
    from orbit_ckpt._src.formats.tf_checkpoint.names import translate_t5  # noqa: PLC0415 - as above
    from orbit_ckpt._src.formats.tf_checkpoint.read import TensorFlowFormat  # noqa: PLC0415 - as above

    options = {
        "step": _step,
        "uint16": _choice({name: name for name in get_args(Uint16)}),
        "allow_legacy": _choice(_FLAGS),
    }
    names = {"t5": translate_t5, "none": None}
    return {"t5x": (T5XFormat, options), "tf": (TensorFlowFormat, {"translate": _choice(names)})}


_SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


def parse_dtype(text: str) -> DType:
    """Return the dtype that `--cast` names: `bfloat16`, or `bf16` as papers and configs write it.

    Raises:
        ValueError: There is none of this name.
    """
    from orbit_ckpt._src.arrays.dtypes import as_dtype  # noqa: PLC0415 - imports numpy

    try:
        return as_dtype(_SHORT_DTYPES.get(text, text))
    except TypeError as error:
        raise ValueError(f"{text!r} is no dtype; give one such as bfloat16 or float32.") from error


def parse_reader(text: str | None) -> Format | None:
    """Return the format named by `--reader`; None if it is not given.

    Raises:
        click.BadParameter: The reader does not exist, or has no such option or value.
    """
    if text is None:
        return None
    readers = _readers()
    name, _, rest = text.partition(":")
    if name not in readers:
        raise click.BadParameter(
            f"--reader {text!r}: give {' or '.join(readers)}, with options "
            "behind a colon, such as t5x:step=5."
        )
    make, options = readers[name]
    given: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, _, value = part.partition("=")
        if key not in options:
            raise click.BadParameter(
                f"--reader {text!r}: {name} has no option {key!r}; give {', '.join(options)}."
            )
        try:
            given[key] = options[key](value)
        except ValueError as error:
            raise click.BadParameter(f"--reader {text!r}: {key} is {value!r}; {error}.") from None
    return make(**given)
