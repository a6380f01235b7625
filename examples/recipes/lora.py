"""Fine-tune two towers with LoRA; steps share the frozen weights on disk.

A query and a document tower are pretrained and frozen. Only low-rank adapters of their projections
are trained. Every step is a complete checkpoint, but an incremental manager writes only what has
changed since the one before: the adapters and their optimizer state.

Usage: python examples/recipes/lora.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import orbit_ckpt as ocp

VOCABULARY, WIDTH, RANK = 1000, 64, 4
TOWERS = ("query", "document")

Towers = dict[str, dict[str, jax.Array]]

optimizer = optax.adam(1e-2)


def pretrained(key: jax.Array) -> Towers:
    """Return the weights of both towers: an embedding of words and a projection of their mean."""

    def tower(key: jax.Array) -> dict[str, jax.Array]:
        words, kernel = jax.random.split(key)
        return {
            "words": jax.random.normal(words, (VOCABULARY, WIDTH)),
            "kernel": jax.random.normal(kernel, (WIDTH, WIDTH)) / WIDTH**0.5,
        }

    return dict(zip(TOWERS, map(tower, jax.random.split(key)), strict=True))


def init_adapters(key: jax.Array) -> Towers:
    """Return adapters that change nothing yet."""
    return {
        name: {"a": jax.random.normal(key, (WIDTH, RANK)), "b": jnp.zeros((RANK, WIDTH))}
        for name, key in zip(TOWERS, jax.random.split(key), strict=True)
    }


def encode(tower: dict[str, jax.Array], adapter: dict[str, jax.Array], ids: jax.Array) -> jax.Array:
    """Return a unit vector per text."""
    mean = tower["words"][ids].mean(axis=1)
    vector = mean @ tower["kernel"] + mean @ adapter["a"] @ adapter["b"]
    return vector / jnp.linalg.norm(vector, axis=-1, keepdims=True)


def scores(
    base: dict[str, Any], adapters: dict[str, Any], texts: dict[str, jax.Array]
) -> jax.Array:
    """Return how well every query fits every document."""
    query, document = (encode(base[name], adapters[name], texts[name]) for name in TOWERS)
    return query @ document.T * 20


@jax.jit
def train_step(state: dict[str, Any], texts: dict[str, jax.Array]) -> dict[str, Any]:
    """Take one step of a contrastive loss between queries and documents."""

    def loss_fn(adapters: Towers) -> jax.Array:
        logits = scores(state["base"], adapters, texts)
        labels = jnp.arange(len(logits))
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    grads = jax.grad(loss_fn)(state["adapters"])
    updates, opt_state = optimizer.update(grads, state["opt_state"])
    adapters = optax.apply_updates(state["adapters"], updates)
    return {"base": state["base"], "adapters": adapters, "opt_state": opt_state}


def new_bytes(step: Path, earlier: Path | None) -> int:
    """Return the size of the files of a step that are not links to files of an earlier one."""
    known = {file.stat().st_ino for file in earlier.rglob("*")} if earlier else set()
    files = [file.stat() for file in step.rglob("*") if file.is_file()]
    return sum(file.st_size for file in files if file.st_ino not in known)


def main() -> None:
    """Pretrain, fine-tune, look at the sizes, and load what serving needs."""
    ids = jax.random.randint(jax.random.key(2), (2, 32, 8), 0, VOCABULARY)
    texts: dict[str, jax.Array] = dict(zip(TOWERS, ids, strict=True))
    with tempfile.TemporaryDirectory() as directory:
        ocp.save(Path(directory, "pretrained"), pretrained(jax.random.key(0)))

        base = ocp.load(Path(directory, "pretrained"))
        adapters = init_adapters(jax.random.key(1))
        state = {"base": base, "adapters": adapters, "opt_state": optimizer.init(adapters)}
        run = Path(directory, "run")
        # --8<-- [start:run]
        options = ocp.CheckpointManagerOptions(incremental=True, max_to_keep=3)
        with ocp.CheckpointManager(run, options=options) as manager:
            for step in range(5):
                state = train_step(state, texts)
                manager.save(step, state)
        # --8<-- [end:run]
        sizes = {step: new_bytes(run / f"{step}", run / f"{step - 1}") for step in (3, 4)}

        # --8<-- [start:load]
        # each step is complete, whichever others have been deleted
        found = ocp.load(run / "4", like=jax.eval_shape(lambda: state))
        # to serve beside base weights that are in memory already
        small = ocp.load(run / "4", only="adapters/**")["adapters"]
        # --8<-- [end:load]
        # adapters merged, as a base of its own; embeddings are those of the pretrained towers
        merged = {
            name: {**tower, "kernel": tower["kernel"] + small[name]["a"] @ small[name]["b"]}
            for name, tower in base.items()
        }
        ocp.save(Path(directory, "merged"), merged, base=Path(directory, "pretrained"))
        merged_size = new_bytes(Path(directory, "merged"), Path(directory, "pretrained"))
        merged = ocp.load(Path(directory, "merged"))

    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    print(f"A state has {whole:,} bytes; steps add {sizes} to the disk, merging {merged_size:,}.")
    np.testing.assert_array_less([*sizes.values(), merged_size], whole / 4)
    expected = scores(base, state["adapters"], texts)
    np.testing.assert_array_equal(scores(found["base"], found["adapters"], texts), expected)
    np.testing.assert_array_equal(scores(base, small, texts), expected)
    unchanged = init_adapters(jax.random.key(1))
    np.testing.assert_allclose(scores(merged, unchanged, texts), expected, atol=1e-4)


if __name__ == "__main__":
    main()
