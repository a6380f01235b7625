"""Read `--rules`, a file of rules."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.unique_keys import RepeatedKeyError, parse_unique

if TYPE_CHECKING:
    from orbit_ckpt._src.transform.engine import Rule


def read_rules(file: Path) -> list[Rule]:
    """Return the rules in a TOML or JSON file, by its suffix.

    Raises:
        TransformError: It has neither suffix, or holds no valid rules.
        OSError: It cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".toml":
            document: object = tomllib.loads(text)
        elif file.suffix == ".json":
            document = parse_unique(text)
        else:
            raise TransformError(f"{file}: rules are in a file that ends in .toml or .json.")
    except RepeatedKeyError as error:
        raise TransformError(f"{file}: {error}; remove one of them.") from error
    except UnicodeDecodeError as error:
        raise TransformError(f"{file}: not a text in UTF-8: {error}") from error
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise TransformError(f"{file}: not {file.suffix[1:].upper()}: {error}") from error
    from orbit_ckpt._src.transform.rule_file import parse_rules  # noqa: PLC0415 - imports JAX

    return parse_rules(document, str(file))
