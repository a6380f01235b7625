"""Load weights from Hugging Face, in safetensors and PyTorch's layout, into a Flax NNX model.

The file has the names and shapes of a BERT encoder. Rules rename its tensors, transpose the weights
of linear layers, and split those of attention into heads. They are checked before anything is read.

Usage: python examples/recipes/hugging_face.py
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

import orbit_ckpt as ocp
from orbit_ckpt import transform as tf

WORDS, WIDTH, HEADS, LAYERS = 50, 16, 4, 2

# --8<-- [start:rules]
RULES = [
    tf.Rename("embeddings.word_embeddings.weight", "embedding/embedding"),
    tf.Drop("pooler.*"),  # the model has none
    tf.Rename(re.compile(r"encoder\.layer\.(\d+)\.(.*)"), r"layers/\1/\2"),
    tf.Rename("**/attention.self.*.*", r"\1/attention/\2/\3"),
    tf.Rename("**/attention.output.dense.*", r"\1/attention/out/\2"),
    tf.Rename("**/attention.output.LayerNorm.*", r"\1/attention_norm/\2"),
    tf.Rename("**/intermediate.dense.*", r"\1/up/\2"),
    tf.Rename("**/output.dense.*", r"\1/down/\2"),
    tf.Rename("**/output.LayerNorm.*", r"\1/norm/\2"),
    tf.Rename(re.compile(r"(.*norm)/weight"), r"\1/scale"),
    # PyTorch multiplies by the transposed weight
    tf.Rename("**/weight", r"\1/kernel"),
    tf.Transpose("**/kernel"),
    # NNX keeps the heads of attention apart
    tf.Map(
        re.compile(r".*/attention/(query|key|value)/.*"),
        lambda array: array.reshape(*array.shape[:-1], HEADS, -1),
    ),
    tf.Map("**/attention/out/kernel", lambda array: array.reshape(HEADS, -1, WIDTH)),
    # a variable of NNX is a container with a value
    tf.Rename("**", r"\1/value"),
]
# --8<-- [end:rules]


class Layer(nnx.Module):
    """Attention and a perceptron, each with a residual connection, then normalization."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.attention_norm = nnx.LayerNorm(WIDTH, epsilon=1e-12, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.LayerNorm(WIDTH, epsilon=1e-12, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return an array of the same shape."""
        x = self.attention_norm(x + self.attention(x))
        return self.norm(x + self.down(nnx.gelu(self.up(x), approximate=False)))


class Encoder(nnx.Module):
    """Embeddings and layers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.layers = nnx.List([Layer(rngs) for _ in range(LAYERS)])

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Return a vector per token."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return x


# --8<-- [start:load]
def load_encoder(path: Path) -> Encoder:
    """Return the encoder with the weights of a file, a directory or an index of safetensors."""
    # shapes only: no random weights are computed to be overwritten
    graph, target = nnx.split(nnx.eval_shape(lambda: Encoder(nnx.Rngs(0))))
    return nnx.merge(graph, ocp.load(path, like=target, transforms=RULES))


# --8<-- [end:load]


def random_weights() -> dict[str, np.ndarray]:
    """Return tensors with the names and shapes of a small BERT."""
    rng = np.random.default_rng(0)
    shapes = {"embeddings.word_embeddings.weight": (WORDS, WIDTH)}
    shapes |= {"pooler.dense.weight": (WIDTH, WIDTH), "pooler.dense.bias": (WIDTH,)}
    for i in range(LAYERS):
        linear = {f"attention.self.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value")}
        linear |= {"attention.output.dense": (WIDTH, WIDTH)}
        linear |= {"intermediate.dense": (4 * WIDTH, WIDTH), "output.dense": (WIDTH, 4 * WIDTH)}
        for name, shape in linear.items():
            shapes |= {f"encoder.layer.{i}.{name}.weight": shape}
            shapes |= {f"encoder.layer.{i}.{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            for part in ("weight", "bias"):
                shapes |= {f"encoder.layer.{i}.{name}.{part}": (WIDTH,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def as_pytorch(weights: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """Return what BERT's layers compute, written down from PyTorch's conventions."""

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)

    x = weights["embeddings.word_embeddings.weight"][ids]
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        query, key, value = (
            heads(linear(f"{layer}.attention.self.{name}", x)) for name in ("query", "key", "value")
        )
        weight = jax.nn.softmax(query @ key.swapaxes(2, 3) / np.sqrt(query.shape[-1]))
        mixed = np.asarray(weight @ value).swapaxes(1, 2).reshape(x.shape)
        mixed = linear(f"{layer}.attention.output.dense", mixed)
        x = norm(f"{layer}.attention.output.LayerNorm", x + mixed)
        up = np.asarray(jax.nn.gelu(linear(f"{layer}.intermediate.dense", x), approximate=False))
        x = norm(f"{layer}.output.LayerNorm", x + linear(f"{layer}.output.dense", up))
    return x


def main() -> None:
    """Write a file like Hugging Face's, load it, and compare what both models compute."""
    weights, ids = random_weights(), np.arange(12).reshape(2, 6)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "model.safetensors")
        save_file(weights, path, metadata={"format": "pt"})
        encoder = load_encoder(path)
    np.testing.assert_allclose(
        nnx.jit(encoder)(jnp.asarray(ids)), as_pytorch(weights, ids), atol=1e-4
    )
    print("The NNX model computes what the weights compute in PyTorch's layout.")


if __name__ == "__main__":
    main()
