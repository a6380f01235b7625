"""Translate the names of T5's TensorFlow variables to T5X's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from orbit_ckpt._src.runtime.checks import show

Rule = Callable[..., tuple[str | None, Any]]
"""Takes options, name, value and the groups of a pattern; returns the new name, or None to drop the
value, and the value."""


class CheckpointTranslator:
    r"""Renames variables by rules, like T5X's class of the same name.

    Example:
        >>> translator = CheckpointTranslator()
        >>> @translator.add(r"layer_(\d+)/w")
        ... def weights(opts, name, value, layer):
        ...     return f"target/layers_{int(layer)}/kernel", value
        >>> translator.apply({"layer_007/w": 1.5})
        {'target/layers_7/kernel': 1.5}
    """

    def __init__(self) -> None:
        self.rules: list[tuple[re.Pattern[str], Rule]] = []

    def add(self, pattern: str) -> Callable[[Rule], Rule]:
        """Return a decorator that makes a function the rule for names that match entirely.

        Args:
            pattern: A regular expression, whose groups are passed to the function.
        """

        def register(rule: Rule) -> Rule:
            self.rules.append((re.compile(pattern), rule))
            return rule

        return register

    def apply(self, variables: Mapping[str, Any], **options: object) -> dict[str, Any]:
        """Return variables under their new names; the first matching rule applies.

        Raises:
            ValueError: No rule matches some names.
        """
        found: dict[str, Any] = {}
        unmatched: dict[str, Any] = {}
        for name, value in variables.items():
            for pattern, rule in self.rules:
                match = pattern.fullmatch(name)
                if match is not None:
                    renamed, new = rule(options, name, value, *match.groups())
                    if renamed is not None:
                        found[renamed] = new
                    break
            else:
                unmatched[name] = value
        if unmatched:
            raise ValueError(f"Unmapped tensor keys exist: {unmatched}")
        return found


_SLOTS = {"": "", "_slot_vc": "/v_col", "_slot_vr": "/v_row", "_slot_v": "/v"}
_STEP = "global_step"
_SLOT = r"(\w*)"
_TOWER = r"(encoder|decoder|transformer)"
_BLOCK = rf"{_TOWER}/block_(\d+)"
_RELATIVE = re.compile(r"layers_(\d+)/relpos_bias")
_LETTERS = {"q": "query", "k": "key", "v": "value", "o": "out"}
_ATTENTION = {"SelfAttention": "self_attention", "EncDecAttention": "encoder_decoder_attention"}
_NORMS = {
    "encoder": ("pre_attention_layer_norm", "pre_mlp_layer_norm"),
    "decoder": (
        *("pre_self_attention_layer_norm", "pre_cross_attention_layer_norm"),
        "pre_mlp_layer_norm",
    ),
    "transformer": ("pre_self_attention_layer_norm", "pre_mlp_layer_norm"),
}


def _tower(name: str) -> str:
    return "decoder" if name == "transformer" else name


def _attention(tower: str, block: str, kind: str, letter: str) -> str:
    name = "attention" if tower == "encoder" else _ATTENTION[kind]
    return f"{_tower(tower)}/layers_{int(block)}/{name}/{_LETTERS[letter]}/kernel"


def _norm(tower: str, block: str, layer: str) -> str:
    return f"{_tower(tower)}/layers_{int(block)}/{_NORMS[tower][int(layer)]}/scale"


def _mlp(tower: str, block: str, kind: str, number: str | None) -> str:
    suffix = f"_{number}" if number else ""
    return f"{_tower(tower)}/layers_{int(block)}/mlp/{kind}{suffix}/kernel"


def _embedding(tower: str) -> str:
    return f"{_tower(tower)}/token_embedder/embedding"


def _position_bias(tower: str, block: str) -> str:
    return f"{_tower(tower)}/layers_{int(block)}/relpos_bias/rel_embedding"


def _final_norm(tower: str) -> str:
    return f"{_tower(tower)}/{_tower(tower)}_norm/scale"


_PARAMETERS: Mapping[str, Callable[..., str]] = {
    "shared/embedding": lambda: "token_embedder/embedding",
    rf"{_TOWER}/embedding": _embedding,
    rf"{_BLOCK}/layer_000/SelfAttention/relative_attention_bias": _position_bias,
    rf"{_BLOCK}/layer_\d+/(SelfAttention|EncDecAttention)/(q|k|v|o)": _attention,
    rf"{_BLOCK}/layer_\d+/DenseReluDense/(wi|wo)(?:_(\d+))?/kernel": _mlp,
    rf"{_BLOCK}/layer_(\d+)/(?:layer|rms)_norm/scale": _norm,
    rf"{_TOWER}/(?:final_layer|rms)_norm/scale": _final_norm,
    "(?:decoder|transformer)/logits/kernel": lambda: "decoder/logits_dense/kernel",
}
"""Patterns of variables, and functions that build the new names from their groups."""


def _make_rules() -> CheckpointTranslator:
    translator = CheckpointTranslator()

    @translator.add(_STEP)
    def _(_options: object, _name: str, value: Any) -> tuple[str, Any]:
        return "state/step", value.astype(np.int32)

    for pattern, rename in _PARAMETERS.items():
        translator.add(pattern + _SLOT)(_parameter(rename))
    return translator


def _parameter(rename: Callable[..., str]) -> Rule:
    def rule(_options: object, _name: str, value: Any, *groups: str) -> tuple[str, Any]:
        slot = _SLOTS[groups[-1]]
        prefix = "state/param_states" if slot else "target"
        return f"{prefix}/{rename(*groups[:-1])}{slot}", value

    return rule


T5_RULES = _make_rules()
"""T5X's rules for variables of T5 and T5 1.1."""


def translate_t5(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a TensorFlow T5 as T5X imports them.

    T5X shares the position biases of the first layers among all layers. Optimizer states that only
    Flax's Adafactor has are zeros.

    Raises:
        ValueError: A variable is not one of T5's.
    """
    if not isinstance(variables, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
        raise TypeError(
            f"variables must be a dict, found {show(variables)}. Give the variables of a T5 by "
            "name."
        )
    try:
        found = T5_RULES.apply(variables)
    except LookupError as error:
        raise ValueError(f"{error} is neither a state of Adafactor nor a layer of T5") from error
    layers = [int(match[1]) for name in found if (match := _RELATIVE.search(name))]
    if not any(layers):
        found = {_RELATIVE.sub("relpos_bias", name): value for name, value in found.items()}
    added: dict[str, Any] = {}
    for name in found:
        if name.startswith("target/"):
            state = f"state/param_states/{name.removeprefix('target/')}"
            lacking = ["m"]
            if f"{state}/v" in found:
                lacking += ["v_row", "v_col"]
            elif f"{state}/v_row" in found:
                lacking += ["v"]
            added |= {f"{state}/{slot}": np.zeros(1, np.float32) for slot in lacking}
    return {**found, **added}
