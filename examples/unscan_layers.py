"""Load a checkpoint of scanned layers into the same model with unrolled layers, and back again.

A flax.linen transformer is trained with `nn.scan` over its layers, so every parameter of the layers
has a layer axis. One rule splits it into `layers_0`, `layers_1`, ..., in the parameters and in the
state of Adam. Both models then give the same outputs, bit for bit. The reverse rule restores the
saved arrays.

Usage: python examples/unscan_layers.py
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import orbit_ckpt as ocp
from orbit_ckpt import transform as tf

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 4, 64, 4, 32, 128
STEPS, BATCH = 20, 8

UNROLL = [tf.Unstack("**/layers/**", r"\1/layers_\g<i>/\2")]
SCAN = [tf.Stack("**/layers_*/**", r"\1/layers/\3", number=2)]


class Block(nn.Module):
    """One layer, in the form that `nn.scan` requires."""

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        """Return the layer's output."""
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        normed = nn.LayerNorm(name="attention_norm")(x)
        x = x + nn.MultiHeadDotProductAttention(HEADS, name="attention")(normed, mask=mask)
        hidden = nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm(name="mlp_norm")(x))
        return x + nn.Dense(WIDTH, name="down")(nn.gelu(hidden)), None


class Transformer(nn.Module):
    """A language model.

    Attributes:
        scanned: Whether to scan one block over the layers instead of unrolling them.
    """

    scanned: bool

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits of the next tokens."""
        position = self.param("position", nn.initializers.normal(0.02), (CONTEXT, WIDTH))
        x = nn.Embed(VOCABULARY, WIDTH, name="embedding")(tokens) + position
        if self.scanned:
            scan = nn.scan(
                Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS
            )
            x, _ = scan(name="layers")(x, None)
        else:
            for i in range(LAYERS):
                x, _ = Block(name=f"layers_{i}")(x, None)
        return nn.Dense(VOCABULARY, name="output")(nn.LayerNorm(name="norm")(x))


def initial_state(model: Transformer) -> TrainState:
    """Return parameters and the state of Adam before the first step."""
    tokens = jnp.zeros((1, CONTEXT), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), tokens)["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))


def load_data() -> jax.Array:
    """Return the text of this file in rows of `CONTEXT + 1` tokens."""
    text = np.frombuffer(Path(__file__).read_bytes(), np.uint8)
    return jnp.asarray(text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1))


@jax.jit
def train_step(state: TrainState, rows: jax.Array) -> tuple[TrainState, jax.Array]:
    """Take one step."""

    def loss_fn(params: optax.Params) -> jax.Array:
        logits = state.apply_fn({"params": params}, rows[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def outputs(state: TrainState, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the logits, computed operation by operation and compiled as a whole.

    Operation by operation, both models compute the same, so the bits must agree. Compiled, they are
    different programs, for which XLA guarantees less; on the CPU their bits agree too.
    """
    with jax.disable_jit():
        stepwise = state.apply_fn({"params": state.params}, tokens)
    return stepwise, jax.jit(state.apply_fn)({"params": state.params}, tokens)


def leaves_of(state: TrainState, layer: str) -> list[jax.Array]:
    """Return the parameters of a layer and their moments in the state of Adam."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return [leaf for path, leaf in leaves if f"['{layer}']" in jax.tree_util.keystr(path)]


def check_same(what: str, found: object, expected: object) -> None:
    """Exit with an error unless the arrays of two trees are identical, bit for bit."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    for one, other in pairs:
        if one.dtype != other.dtype or one.shape != other.shape:
            sys.exit(f"{what}: {one.dtype}{one.shape} is not {other.dtype}{other.shape}.")
        if np.asarray(one).tobytes() != np.asarray(other).tobytes():
            sys.exit(f"{what}: values differ.")
    print(f"{what}: {len(pairs)} arrays are identical, bit for bit.")


def main() -> None:
    """Train, save, load unrolled, save that, load scanned; compare each time."""
    jax.config.update("jax_platforms", "cpu")
    scanned, unrolled = Transformer(scanned=True), Transformer(scanned=False)
    state, rows = initial_state(scanned), load_data()
    loss = jnp.nan
    for step in range(STEPS):
        state, loss = train_step(state, rows[step * BATCH : (step + 1) * BATCH])
    print(f"Loss after {STEPS} steps: {loss:.3f}")
    expected = outputs(state, rows[:BATCH, :-1])

    with tempfile.TemporaryDirectory() as directory:
        ocp.save(Path(directory, "scanned"), state)
        target = jax.eval_shape(partial(initial_state, unrolled))
        other = ocp.load(Path(directory, "scanned"), like=target, transforms=UNROLL)
        ocp.save(Path(directory, "unrolled"), other)
        target = jax.eval_shape(partial(initial_state, scanned))
        back = ocp.load(Path(directory, "unrolled"), like=target, transforms=SCAN)

    stacked = leaves_of(state, "layers")
    for i in range(LAYERS):
        check_same(f"Layer {i}", leaves_of(other, f"layers_{i}"), [array[i] for array in stacked])
    check_same("Outputs, unrolled", outputs(other, rows[:BATCH, :-1]), expected)
    check_same("State, scanned again", back, state)
    check_same("Outputs, scanned again", outputs(back, rows[:BATCH, :-1]), expected)


if __name__ == "__main__":
    main()
