"""Rule files: TOML or JSON."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.transform.engine import Rule
from orbit_ckpt._src.transform.rule_file import parse_rules


def read_rules(file: Path) -> list[Rule]:
    """Return the rules in a file; its name says whether it is TOML or JSON.

    Raises:
        TransformError: It is neither, or describes no rules.
        OSError: It cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".toml":
            document: object = tomllib.loads(text)
        elif file.suffix == ".json":
            document = json.loads(text)
        else:
            raise TransformError(f"{file}: rules are in a file that ends in .toml or .json.")
    except UnicodeDecodeError as error:
        raise TransformError(f"{file}: not a text in UTF-8: {error}") from error
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise TransformError(f"{file}: not {file.suffix[1:].upper()}: {error}") from error
    return parse_rules(document, str(file))
