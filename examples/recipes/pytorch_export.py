"""Export a trained Flax NNX model for PyTorch: a safetensors file with PyTorch's names and layout.

In PyTorch: `model.load_state_dict(safetensors.torch.load_file("model.safetensors"))`.

Usage: python examples/recipes/pytorch_export.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file

import orbit_ckpt as ocp
from orbit_ckpt import transform as tf

# --8<-- [start:rules]
RULES = [
    tf.Rename("**/value", r"\1"),  # a variable of NNX is a container with a value
    tf.Drop("dropout/**"),  # PyTorch's dropout has no state
    tf.Transpose("conv/kernel", (3, 2, 0, 1)),  # height, width, in, out
    tf.Transpose("output/kernel"),
    tf.Rename("**/kernel", r"\1/weight"),
    tf.Rename("norm/scale", "norm/weight"),
    tf.Rename("norm/mean", "norm/running_mean"),
    tf.Rename("norm/var", "norm/running_var"),
]
# --8<-- [end:rules]
"""Tensors are named by the keys of their path, joined by dots: `conv.weight`."""


class Model(nnx.Module):
    """A convolution, batch normalization, the mean of all pixels, and a linear layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(3, 8, (3, 5), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.output = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the logits of images with their channels last."""
        x = nnx.relu(self.norm(self.conv(images)))
        return self.output(self.dropout(x.mean(axis=(1, 2))))


def as_pytorch(tensors: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    """Return what the same model computes by PyTorch's conventions, with channels first."""
    x = jax.lax.conv_general_dilated(
        images, tensors["conv.weight"], (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    x += tensors["conv.bias"][:, None, None]
    scale = tensors["norm.weight"] / jnp.sqrt(tensors["norm.running_var"] + 1e-5)
    x = (x - tensors["norm.running_mean"][:, None, None]) * scale[:, None, None]
    x = jax.nn.relu(x + tensors["norm.bias"][:, None, None]).mean(axis=(2, 3))
    return x @ tensors["output.weight"].T + tensors["output.bias"]


def main() -> None:
    """Save a model, convert the checkpoint, and compare what both files compute."""
    images = jax.random.normal(jax.random.key(0), (4, 12, 12, 3))
    model = Model(nnx.Rngs(1))
    nnx.jit(Model.__call__)(model, images)  # moves the running averages

    with tempfile.TemporaryDirectory() as directory:
        step, exported = Path(directory, "step_1"), Path(directory, "model.safetensors")
        ocp.save(step, nnx.state(model))
        # --8<-- [start:convert]
        ocp.convert(
            step,
            exported,
            to="safetensors",
            transforms=RULES,
            custom_metadata={"format": "pt"},  # which Transformers asks for
        )
        # --8<-- [end:convert]
        tensors = jax.tree.map(jnp.asarray, load_file(exported))
        with safe_open(exported, framework="numpy") as file:
            metadata = file.metadata()

    np.testing.assert_equal(metadata, {"format": "pt"})
    model.eval()
    found = jax.jit(as_pytorch)(tensors, images.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(found, nnx.jit(Model.__call__)(model, images), atol=1e-5)
    print("Exported:", ", ".join(f"{name} {array.shape}" for name, array in tensors.items()))


if __name__ == "__main__":
    main()
