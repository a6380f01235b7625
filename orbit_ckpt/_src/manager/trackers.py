"""Loggers of managers that write to TensorBoard, Weights & Biases and MLflow.

None of these is imported here: a logger is given the writer, run or client of the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from typing_extensions import override

from orbit_ckpt._src.guards import is_json_object, is_mapping
from orbit_ckpt._src.manager.statistics import AbstractLogger
from orbit_ckpt._src.runtime.checks import check_methods, show

_NAMES = {
    "nbytes": "bytes",
    "duration_secs": "seconds",
    "checkpoint_manager_blocking_duration_secs": "blocked_seconds",
    "wait_for_prev_duration_secs": "waited_seconds",
}
"""What numbers of events are called."""


class TensorBoardXWriter(Protocol):
    """A writer of tensorboardX or PyTorch."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> object:
        """Write a scalar."""
        ...


def scalars_of(event: object) -> tuple[int, dict[str, float]] | None:
    """Return the step and the numbers of an event, None if it is not about a step.

    The names are those of the event, then `bytes`, `seconds`, `blocked_seconds`, `waited_seconds`
    and `metrics/loss`: `checkpoint/commit/seconds`, for example.
    """
    if not is_json_object(event) or not isinstance(step := event.get("step"), int):
        return None
    kind = str(event.get("event_type"))
    given = event.get("metrics")
    metrics: Mapping[object, object] = given if is_mapping(given) else {}
    found = {f"checkpoint/{kind}/{name}": event.get(key) for key, name in _NAMES.items()}
    found |= {f"checkpoint/{kind}/metrics/{name}": value for name, value in metrics.items()}
    numbers = {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return step, numbers


class TensorBoardLogger(AbstractLogger):
    """Writes what a manager reports as scalars, which `TensorBoardMetrics` reads back.

    Example:
        >>> from tensorboardX import SummaryWriter
        >>> with SummaryWriter("run/tensorboard") as writer:
        ...     logger = orbit_ckpt.logging.TensorBoardLogger(writer)
        ...     with orbit_ckpt.CheckpointManager("run/steps", logger=logger) as run:
        ...         _ = run.save(1, {"w": jax.numpy.ones(2)}, metrics={"loss": 0.5})
    """

    receives_commits = True

    def __init__(self, writer: TensorBoardXWriter) -> None:
        """Make a logger.

        Args:
            writer: A `SummaryWriter` of tensorboardX or PyTorch.

        Raises:
            TypeError: It is no writer.
        """
        advice = "Give tensorboardX.SummaryWriter('logs')."
        check_methods("writer", writer, ["add_scalar"], advice, optional=False)
        self._writer = writer

    @override
    def log_entry(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Write the numbers of an event."""
        found = scalars_of(msg)
        if found is None:
            return
        step, scalars = found
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)


class WandbLogger(AbstractLogger):
    """Logs what a manager reports to a run of Weights & Biases.

    A background save ends when training is steps ahead, and W&B drops values of past steps.
    Therefore `checkpoint/step` is logged beside them, and is the step of their charts.
    """

    receives_commits = True

    def __init__(self, run: Any) -> None:
        """Make a logger.

        Args:
            run: What `wandb.init()` returns.

        Raises:
            TypeError: It is no run.
        """
        check_methods("run", run, ["log", "define_metric"], "Give wandb.init().", optional=False)
        run.define_metric("checkpoint/step")
        run.define_metric("checkpoint/*", step_metric="checkpoint/step")
        self._run = run

    @override
    def log_entry(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Log the numbers of an event."""
        found = scalars_of(msg)
        if found is not None:
            self._run.log({"checkpoint/step": found[0], **found[1]})


class MlflowLogger(AbstractLogger):
    """Logs what a manager reports to a run of MLflow.

    It uses a client, because `mlflow.log_metrics` logs to the active run of its thread, and a
    background save ends on another one.
    """

    receives_commits = True

    def __init__(self, client: Any, run_id: str) -> None:
        """Make a logger.

        Args:
            client: An `mlflow.MlflowClient`.
            run_id: The run, `mlflow.active_run().info.run_id` for the active one.

        Raises:
            TypeError: One of them is something else.
        """
        advice = "Give mlflow.MlflowClient()."
        check_methods("client", client, ["log_metric"], advice, optional=False)
        if not isinstance(run_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
            raise TypeError(
                f"run_id must be a string, found {show(run_id)}. Give "
                "mlflow.active_run().info.run_id."
            )
        self._client, self._run_id = client, run_id

    @override
    def log_entry(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Log the numbers of an event."""
        found = scalars_of(msg)
        for name, value in found[1].items() if found else ():
            self._client.log_metric(self._run_id, name, value, step=found[0] if found else 0)
