"""Managers report to TensorBoard, Weights & Biases and MLflow, by the real packages, offline.

`nox -s trackers` installs those that the usual tests lack.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from tensorboardX import SummaryWriter

import orbit_ckpt as ocp
from orbit_ckpt.logging import AbstractLogger, MlflowLogger, TensorBoardLogger, WandbLogger
from tests.programs import run_script

PAGE = Path(__file__).parents[2] / "docs/how-to/observe.md"
HEAVY = "installed by `nox -s trackers` only"
NUMBERS = {
    "checkpoint/save/blocked_seconds",
    "checkpoint/save/seconds",
    "checkpoint/commit/bytes",
    "checkpoint/commit/metrics/loss",
    "checkpoint/commit/seconds",
    "checkpoint/restore/seconds",
}


def train(path: Path, logger: AbstractLogger) -> None:
    """Save two steps in the background and restore one."""
    with ocp.CheckpointManager(path, logger=logger) as run:
        for step in (1, 2):
            run.save(step, {"w": jnp.zeros(8)}, metrics={"loss": 1 / step, "note": "text"})
        run.wait_until_finished()
        run.restore(2)


def test_tensorboard_x(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "events")) as writer:
        train(tmp_path / "run", TensorBoardLogger(writer))

    def read(name: str) -> Any:
        return ocp.TensorBoardMetrics(tmp_path / "events", name).values([1, 2])

    assert read("checkpoint/commit/bytes") == {1: 32, 2: 32}
    assert read("checkpoint/commit/metrics/loss") == {1: 1.0, 2: 0.5}
    assert read("checkpoint/commit/metrics/note") == {}
    assert read("checkpoint/restore/seconds").keys() == {2}
    assert all(value > 0 for value in read("checkpoint/save/blocked_seconds").values())


def test_wandb(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb", reason=HEAVY)
    run = wandb.init(project="test", mode="offline", dir=tmp_path)
    run.log({"loss": 1.0}, step=1000)  # training is ahead of the saves
    train(tmp_path / "run", WandbLogger(run))
    summary = {key: run.summary.get(key) for key in [*NUMBERS, "checkpoint/step"]}
    run.finish()
    assert all(value is not None for value in summary.values())
    assert summary["checkpoint/commit/bytes"] == 32
    assert summary["checkpoint/commit/metrics/loss"] == 0.5
    assert summary["checkpoint/step"] == 2


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason=HEAVY)
    client = mlflow.MlflowClient(tracking_uri=f"file://{tmp_path}/mlruns")
    run_id = client.create_run(client.create_experiment("test")).info.run_id
    train(tmp_path / "run", MlflowLogger(client, run_id))
    assert client.get_run(run_id).data.metrics.keys() >= NUMBERS
    losses = client.get_metric_history(run_id, "checkpoint/commit/metrics/loss")
    assert [(metric.step, metric.value) for metric in losses] == [(1, 1.0), (2, 0.5)]


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_the_example_of_the_page_runs(package: str, tmp_path: Path) -> None:
    pytest.importorskip(package, reason=HEAVY)
    blocks = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (example,) = [block for block in blocks if block.startswith(f"import {package}\n")]
    uri = f"file://{tmp_path}/mlruns"
    offline = {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "1"}
    before = "import orbit_ckpt as ocp\nstate = {'w': 1}\n"
    done = run_script(before + example, directory=tmp_path, environment=offline)
    assert done.returncode == 0, done.stderr
    assert ocp.load(tmp_path / f"run_{package}/100") == {"w": 1}


@pytest.mark.parametrize("make", [TensorBoardLogger, WandbLogger, lambda x: MlflowLogger(x, "a")])
@pytest.mark.parametrize("wrong", [None, "logs", SummaryWriter])
def test_what_cannot_log_is_refused_at_once(make: Any, wrong: object) -> None:
    with pytest.raises(TypeError, match=r"must be an object with .* found .* Give "):
        make(wrong)


def test_a_run_of_mlflow_is_named_by_its_id() -> None:
    class Client:
        def log_metric(self) -> None: ...

    run_id: Any = Client()
    with pytest.raises(TypeError, match=r"run_id must be a string.*active_run\(\)\.info\.run_id"):
        MlflowLogger(Client(), run_id)


def test_a_logger_that_fails_does_not_fail_a_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(AbstractLogger):
        receives_commits = True

        def log_entry(self, msg: Any, *_args: Any, **_kwargs: Any) -> None:
            if msg["event_type"] == "commit":
                raise ConnectionError("no network")

    with caplog.at_level(logging.ERROR):
        train(tmp_path / "run", Failing())
    assert caplog.text.count("ConnectionError: no network") == 2
    assert ocp.latest_step(tmp_path / "run") == 2
