"""Runs in the v1 API, next to Orbax."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt
import orbit_ckpt.v1 as ours
from orbit_ckpt.errors import BackgroundSaveError, StepAlreadyExistsError, TreeMismatchError
from tests.v1.both import LEAKS, LIBRARIES, outcome, plain, run_both

pytestmark = [pytest.mark.interop, LEAKS]


def fill(run: Any) -> None:
    run.save(0, {"a": jnp.arange(3.0)}, metrics={"loss": 1.5}, custom_metadata={"k": 1})
    run.save_async(1, {"a": jnp.arange(4.0)}).result()
    run.save_checkpointables(2, {"state": {"a": 1}, "other": {"x": "y"}})


def listed(run: Any) -> str:
    return str([(step.step, step.metrics, step.path.name) for step in run.checkpoints])


CASES: dict[str, Callable[[Any], object]] = {
    "steps": listed,
    "latest": lambda run: run.latest.step,
    "directory": lambda run: run.directory.name,
    "load": lambda run: run.load(0),
    "load the newest": lambda run: run.load(),
    "load by metadata": lambda run: run.load(run.checkpoints[1]),
    "load another": lambda run: run.load(9),
    "load another item": lambda run: run.load(2, checkpointable_name="other"),
    "load all items": lambda run: run.load_checkpointables(2),
    "items without metrics": lambda run: run.load_checkpointables(0),
    "abstract": lambda run: run.load(0, {"a": jnp.zeros(3, jnp.bfloat16)}),
    "an existing step": lambda run: run.save(0, {"a": 1}),
    "overwrite": lambda run: (run.save(0, {"a": 1}, overwrite=True), run.load(0), listed(run)),
    "reserved name": lambda run: run.save_checkpointables(3, {"metrics": 1}),
    "metadata": lambda run: str(
        (
            run.metadata(0).step,
            run.metadata(0).metrics,
            run.metadata(0).custom_metadata,
            run.metadata(0).metadata["a"].shape,
        )
    ),
    "metadata of items": lambda run: str(sorted(run.checkpointables_metadata(2).metadata.items())),
    "metadata of the run": lambda run: str(run.root_metadata().custom_metadata),
    "delete": lambda run: (run.delete(1), listed(run)),
    "delete twice": lambda run: [run.delete(1) for _ in range(2)],
    "delete twice, may be missing": lambda run: [
        run.delete_async(1, missing_ok=True).result() for _ in range(2)
    ],
    "delete an item": lambda run: (
        run.delete(2, checkpointable_name="other"),
        run.load_checkpointables(2),
    ),
    "delete a negative step": lambda run: run.delete(-1),
    "delete no step": lambda run: run.delete("x"),
    "should save": lambda run: str([run.should_save(step) for step in (2, 3)]),
    "in progress": lambda run: (run.is_saving_in_progress(), run.wait(), run.reload()),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        with lib.training.Checkpointer(at / "run", custom_metadata={"r": 1}) as run:
            fill(run)
            return str(outcome(lambda: CASES[case](run)))

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


def test_empty_run(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        with lib.training.Checkpointer(at / "run") as run:
            return str((run.latest, list(run.checkpoints), run.should_save(0)))

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


def test_policies_and_names(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        training = lib.training
        standard = lib.path.step.standard_name_format
        names = standard(step_prefix="ck", step_format_fixed_length=4)
        with training.Checkpointer(
            at / "run",
            save_decision_policy=training.save_decision_policies.FixedIntervalPolicy(2),
            preservation_policy=training.preservation_policies.LatestN(2),
            step_name_format=names,
        ) as run:
            saved = [run.save(step, {"a": step}) for step in range(7)]
            saved += [run.save(7, {"a": 7}, force=True), run.save_async(9, {"a": 9})]
            steps = listed(run)
        composite = lib.path.step.composite_name_format(names, [names, standard()])
        return str(
            (
                saved,
                steps,
                sorted((step.step, step.path.name) for step in names.find_all(at / "run")),
                names.find_step(at / "run", 6).path.name,
                names.build_name(3),
                sorted(step.step for step in composite.find_all(at / "run")),
            )
        )

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs
    with pytest.raises(ValueError, match="There is no step"):
        ours.path.step.standard_name_format().find_step(tmp_path / "ours" / "run", 99)


def test_best_steps_stay(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        best = lib.training.preservation_policies.BestN(get_metric_fn=lambda m: m["l"], n=1)
        with lib.training.Checkpointer(at / "run", preservation_policy=best) as run:
            for step, value in enumerate([3, 5, 1]):
                run.save(step, {"a": step}, metrics={"l": value})
        with lib.training.Checkpointer(at / "run") as run:
            return listed(run)

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


@pytest.mark.parametrize(("writer", "reader"), [("ours", "orbax"), ("orbax", "ours")])
def test_runs_pass_between_the_libraries(writer: str, reader: str, tmp_path: Path) -> None:
    with LIBRARIES[writer].training.Checkpointer(tmp_path / "run") as run:
        fill(run)
    with LIBRARIES[reader].training.Checkpointer(tmp_path / "run") as run:
        assert listed(run) == str([(0, {"loss": 1.5}, "0"), (1, None, "1"), (2, None, "2")])
        assert run.load(1)["a"].tolist() == [0, 1, 2, 3]
        assert plain(run.load_checkpointables(2)) == plain({"state": {"a": 1}, "other": {"x": "y"}})
        run.save(3, {"a": 3})
    assert LIBRARIES[writer].load(tmp_path / "run" / "3") == {"a": 3}


def test_options_of_the_context_apply(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        context, other = lib.Context(), lib.Context()
        context.array.saving.use_ocdbt = False
        with lib.training.Checkpointer(at / "run", context=context) as run:
            run.save(0, {"a": jnp.ones(2)})
            with other:
                run.save(1, {"a": jnp.ones(2)})
        states = [at / "run" / str(step) / "state" for step in range(2)]
        return str([(state / "manifest.ocdbt").is_file() for state in states])

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


def test_manager_reads_the_run(tmp_path: Path) -> None:
    with ours.training.Checkpointer(tmp_path / "run") as run:
        fill(run)
    args = orbit_ckpt.args
    with orbit_ckpt.CheckpointManager(tmp_path / "run", item_names=["state"]) as manager:
        assert manager.all_steps() == [0, 1, 2]
        assert manager.metrics(0) == {"loss": 1.5}
        found = manager.restore(2, args=args.Composite(state=args.PyTreeRestore()))
        assert found["state"] == {"a": 1}
    assert orbit_ckpt.verify(tmp_path / "run" / "0").is_intact


def test_error_of_a_background_save_is_raised_by_its_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    with ours.training.Checkpointer(tmp_path / "run") as run:
        monkeypatch.setattr("orbit_ckpt._src.v1.saving.write_marker", fail)
        response = run.save_async(0, {"a": jnp.ones(2)})
        assert response is not None
        with pytest.raises((OSError, BackgroundSaveError), match="disk full"):
            response.result()
        monkeypatch.undo()
        assert run.save(1, {"a": 1})
        assert [step.step for step in run.checkpoints] == [1]


def test_a_step_in_progress_is_listed_and_a_load_waits_for_it(tmp_path: Path) -> None:
    with ours.training.Checkpointer(tmp_path / "run") as run:
        run.save(0, {"a": 0})
        run.save_async(1, {"a": np.ones((1024, 1024))}, force=True)
        newest = run.latest
        assert newest is not None
        assert newest.step == 1
        assert run.load(newest)["a"].shape == (1024, 1024)
        run.save_async(2, {"a": np.ones((1024, 1024))}, force=True)
        assert run.load()["a"].shape == (1024, 1024)
        run.save_async(3, {"a": np.ones((1024, 1024))}, force=True)
        assert run.metadata(3).metadata["a"].shape == (1024, 1024)
        assert run.metadata().step == 3


def test_a_step_in_progress_is_overwritten_once_it_is_durable(tmp_path: Path) -> None:
    with ours.training.Checkpointer(tmp_path / "run") as run:
        run.save_async(0, {"a": np.ones((1024, 1024))})
        with pytest.raises(StepAlreadyExistsError):
            run.save(0, {"a": 1}, force=True)
        run.save_async(1, {"a": np.ones((1024, 1024))}, force=True)
        assert run.save(1, {"a": 2}, overwrite=True)
        assert run.load(1) == {"a": 2}


def test_a_failed_step_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    with ours.training.Checkpointer(tmp_path / "run") as run:
        run.save(0, {"a": 0})
        monkeypatch.setattr("orbit_ckpt._src.v1.saving.write_marker", fail)
        run.save_async(1, {"a": 1}, force=True)
        assert run.load() == {"a": 0}  # waits
        assert [step.step for step in run.checkpoints] == [0]
        monkeypatch.undo()
        with pytest.raises(BackgroundSaveError, match="disk full"):
            run.wait()


def test_mismatch_names_the_checkpointable_and_is_a_key_error(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        with lib.training.Checkpointer(at / "run") as run:
            run.save_checkpointables(0, {"params": {"a": 1}})
            return run.load_checkpointables(0, {"params": {"a": 1, "b": 2}})

    for name, library in LIBRARIES.items():
        with pytest.raises(KeyError):
            steps(library, tmp_path / name)
    with pytest.raises(TreeMismatchError, match=r"^params: User-provided(.|\n)*partial_load"):
        steps(ours, tmp_path / "again")


@pytest.mark.parametrize("library", ["ours", "orbax"])
def test_policies_follow_the_time_that_a_test_of_a_trainer_sets(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = LIBRARIES[library].training
    policy = training.preservation_policies.EveryNSeconds(40)
    with training.Checkpointer(tmp_path / "run", preservation_policy=policy) as run:
        for step in range(5):

            class Clock(dt.datetime):
                seconds = 20 * step

                @classmethod
                def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
                    return dt.datetime.fromtimestamp(cls.seconds, tz=tz)

            with monkeypatch.context() as patch:
                patch.setattr(dt, "datetime", Clock)
                run.save(step, {"a": jnp.arange(2)})
        found = [(one.step, one.time.timestamp()) for one in run.checkpoints]
    assert found == [(0, 0.0), (2, 40.0), (4, 80.0)]


@pytest.mark.parametrize("library", ["ours", "orbax"])
def test_a_policy_of_a_user_knows_how_the_processes_save_together(
    tmp_path: Path, library: str
) -> None:
    training = LIBRARIES[library].training

    class OnPrimary(training.save_decision_policies.SaveDecisionPolicy):
        def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
            assert context.multiprocessing_options.primary_host == 0
            return not previous_steps or step.time < previous_steps[-1].time

    with training.Checkpointer(tmp_path / "run", save_decision_policy=OnPrimary()) as run:
        assert [run.save(step, {"a": jnp.arange(2)}) for step in range(3)] == [True, False, False]
