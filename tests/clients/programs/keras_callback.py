"""Keras' `OrbaxCheckpoint` callback, and `load_model` of what it saves."""

import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from _report import describe, main


def make_model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((4,), name="inputs")
    hidden = keras.layers.Dense(3, activation="relu", name="hidden")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, name="outputs")(hidden), name="model")
    model.compile(optimizer="adam", loss="mse")
    return model


INPUTS = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
TARGETS = INPUTS.sum(axis=1, keepdims=True)


def fit(directory: Path, epochs: int, **options: object) -> keras.Model:
    model = make_model(0)
    callback = keras.callbacks.OrbaxCheckpoint(directory=str(directory), **options)
    model.fit(INPUTS, TARGETS, batch_size=8, epochs=epochs, callbacks=[callback], verbose=0)
    return model


def steps_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.isdigit())


def save(directory: Path) -> object:
    model = fit(directory / "full", 3, max_to_keep=2)
    fit(directory / "weights", 2, save_weights_only=True, save_on_background=False)
    fit(directory / "batches", 2, save_freq=3, max_to_keep=None)
    fit(directory / "best", 3, save_best_only=True, monitor="loss", mode="min")
    return [
        describe([np.asarray(weight) for weight in model.get_weights()]),
        *[steps_in(directory / name) for name in ("full", "weights", "batches", "best")],
    ]


def restore(directory: Path) -> object:
    results = {}
    model = keras.saving.load_model(str(directory / "full"))
    results["model"] = describe(model.get_weights())
    results["prediction"] = describe(model.predict(INPUTS[:2], verbose=0))
    results["iterations"] = int(model.optimizer.iterations)
    model.fit(INPUTS, TARGETS, batch_size=8, epochs=1, verbose=0, shuffle=False)
    results["trained further"] = describe(model.get_weights())
    for name in ("weights", "batches", "best"):
        model = make_model(1)
        model.load_weights(str(directory / name))
        results[name] = describe(model.get_weights())
    return results


if __name__ == "__main__":
    main(save, restore)
