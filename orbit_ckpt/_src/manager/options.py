"""Options of `CheckpointManager`: Orbax's, then the library's own."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from orbit_ckpt._src.checkpointer.options import (
    AsyncOptions,
    AtomicityOptions,
    FileOptions,
    MultiprocessingOptions,
    check_options,
)
from orbit_ckpt._src.checkpointer.unfinished import atomicity_of
from orbit_ckpt._src.manager.combined_preservation import AnyPreservationPolicy
from orbit_ckpt._src.manager.index import MetricsSource
from orbit_ckpt._src.manager.preservation import (
    BestN,
    EveryNSeconds,
    EveryNSteps,
    LatestN,
    PreservationPolicy,
)
from orbit_ckpt._src.manager.retention import RetentionRules
from orbit_ckpt._src.manager.save_policies import (
    AnySavePolicy,
    FixedIntervalPolicy,
    FunctionPolicy,
    InitialSavePolicy,
    PreemptionCheckpointingPolicy,
    SaveDecisionPolicy,
    SpecificStepsPolicy,
)
from orbit_ckpt._src.manager.step_names import StepNameFormat
from orbit_ckpt._src.manager.steps import StepNames, as_step
from orbit_ckpt._src.runtime.checks import (
    check_callable,
    check_duration,
    check_flag_fields,
    check_int,
    check_methods,
    check_steps,
    check_type,
    show,
)
from orbit_ckpt._src.text import warn_set


@dataclass
class CheckpointManagerOptions:
    """When to save, what to keep, and how.

    Attributes:
        save_interval_steps: Save at multiples of it, at least 1, unless `should_save_fn` or a
            policy decides.
        max_to_keep: Keep at most this many steps: the newest, or the best if `best_fn` is set.
        keep_time_interval: Also keep steps at least this far apart in time.
        keep_period: Also keep multiples of it.
        should_save_fn: Decides instead of `save_interval_steps` and `save_on_steps`; receives the
            step and the last one saved, or None.
        best_fn: Maps the metrics given to `save` to the value by which steps are ranked.
        best_mode: Whether the highest ("max") or the lowest ("min") is the best.
        keep_checkpoints_without_metrics: Whether to keep steps without metrics too.
        step_prefix: Prefix of step names; an underscore follows.
        step_format_fixed_length: Number of digits in step names.
        step_name_format: How steps are named, instead of the two above.
        create: Whether to create the directory.
        cleanup_tmp_directories: Whether the manager removes every unfinished save when it opens,
            including other writers'. Those of this library's dead processes are always removed.
        save_on_steps: Also save at these steps.
        single_host_load_and_broadcast: Ignored.
        todelete_subdir: Subdirectory that receives deleted steps.
        todelete_full_path: Not supported: object stores have no rename.
        enable_background_delete: Whether `save` and `delete` return without waiting for deletions.
        read_only: Whether to forbid saving and deleting.
        enable_async_checkpointing: Whether to save in the background.
        async_options: Options of background saves.
        multiprocessing_options: How processes save together.
        file_options: Permissions and other properties of files.
        atomicity_options: How a step becomes visible.
        save_root_metadata: Whether to write the manager's `metadata`.
        temporary_path_class: A class of `path.atomicity` instead of `atomicity_options`.
        save_decision_policy: When to save, instead of every option above that decides it.
        preservation_policy: What to keep, instead of every option above that decides it.
        prevent_write_metrics: Whether to use the metrics given to `save` without writing them.
        enable_should_save_is_saving_in_progress_check: Whether policies see that a save is in
            progress.
        enable_per_process_directory_creation: Ignored.
        lightweight_initialize: Ignored.
        num_deletion_threads: Ignored.
        keep_latest: Whether to keep the newest step regardless of the policies. Orbax has no such
            guard: its `best_fn` deletes the newest step if it is not among the best.
        item_preservation_policies: By item name, the policy for the steps that keep the item.
        metrics_source: Source of metrics not given to `save`, such as `TensorBoardMetrics`. Without
            `best_fn`, steps are ranked by its metric.
        keep_old_temporary_steps: Whether to keep the temporary steps that the run has when the
            manager opens; by default the next step replaces them.
        clock: Returns the time, for policies and for the times that are recorded with steps; a time
            without a zone is local. None for the system's clock.
        incremental: Whether chunks of arrays that the newest step holds are not written again; see
            the `base` of `orbit_ckpt.save`.
        full_every: Every how many incremental saves one is written in full, which bounds how many
            steps the damage of a shared file can reach; None for never.
        template: A tree of arrays or `jax.ShapeDtypeStruct` like every tree to save, or an
            `args.Composite` of such trees by item; `save` refuses trees with other leaves, shapes
            or dtypes.

    Raises:
        ValueError: Options contradict each other, or a number is out of range.
        TypeError: A number has another type, such as bool.
    """

    save_interval_steps: int = 1
    max_to_keep: int | None = None
    keep_time_interval: timedelta | None = None
    keep_period: int | None = None
    best_fn: Callable[[Any], float] | None = None
    best_mode: Literal["max", "min"] = "max"
    keep_checkpoints_without_metrics: bool = True
    step_prefix: str | None = None
    step_format_fixed_length: int | None = None
    step_name_format: StepNames | None = None
    create: bool = True
    cleanup_tmp_directories: bool = False
    save_on_steps: Collection[int] | None = None
    single_host_load_and_broadcast: bool = False
    todelete_subdir: str | None = None
    todelete_full_path: str | None = None
    enable_background_delete: bool = False
    num_deletion_threads: int | None = None
    read_only: bool = False
    enable_async_checkpointing: bool = True
    async_options: AsyncOptions | None = None
    multiprocessing_options: MultiprocessingOptions | None = None
    should_save_fn: Callable[[int, int | None], bool] | None = None
    file_options: FileOptions = field(default_factory=FileOptions)
    atomicity_options: AtomicityOptions | None = None
    save_root_metadata: bool = True
    temporary_path_class: object = None
    save_decision_policy: SaveDecisionPolicy | None = None
    preservation_policy: PreservationPolicy | None = None
    prevent_write_metrics: bool = False
    enable_should_save_is_saving_in_progress_check: bool = True
    enable_per_process_directory_creation: bool = False
    lightweight_initialize: bool = False
    _: KW_ONLY
    keep_latest: bool = True
    item_preservation_policies: Mapping[str, PreservationPolicy] = field(
        default_factory=dict[str, PreservationPolicy]
    )
    metrics_source: MetricsSource | None = None
    keep_old_temporary_steps: bool = False
    clock: Callable[[], datetime] | None = None
    template: object = None
    incremental: bool = False
    full_every: int | None = 50

    def __post_init__(self) -> None:
        if self.best_mode not in ("min", "max"):
            raise ValueError(f"best_mode must be 'min' or 'max', found {show(self.best_mode)}.")
        self._check_numbers()
        self._check_objects()
        check_flag_fields(self, *_FLAGS)
        self.file_options = self.file_options or FileOptions()
        self.atomicity_options = atomicity_of(
            self.temporary_path_class, self.atomicity_options, owner="CheckpointManagerOptions"
        )
        self._warn_of_unused()
        if self.todelete_full_path is not None:
            raise ValueError(
                "todelete_full_path is not supported: object stores have no rename. Leave it out; "
                "steps are then deleted. On a disk use todelete_subdir."
            )
        counts = (self.max_to_keep, self.keep_period, self.keep_time_interval)
        if self.preservation_policy is not None and any(count is not None for count in counts):
            raise ValueError(
                "preservation_policy takes the place of max_to_keep, keep_period and "
                "keep_time_interval; give one or the other."
            )
        if self.best_fn is None and self.metrics_source is not None:
            self.best_fn = _MetricOf(self.metrics_source.metric)
        if self.best_fn is not None and self.max_to_keep is not None and not self.keep_latest:
            warnings.warn(
                "best_fn with keep_latest=False deletes the newest step when it is not among the "
                "best; a job that is restarted then goes back to an older one.",
                stacklevel=3,
            )
        steps = () if self.save_on_steps is None else self.save_on_steps
        self.save_on_steps = frozenset(map(as_step, steps))

    def _warn_of_unused(self) -> None:
        """Warn of options that do nothing or that another one overrides."""
        given = (self.step_prefix, self.step_format_fixed_length)
        names = self.step_name_format
        why = "step_name_format says how steps are named"
        is_same = given == (None, None) or names in (None, StepNameFormat(*given))
        none = (None, None, "")
        warn_set(
            "CheckpointManagerOptions",
            {
                "step_prefix": none if is_same else (given[0], None, why),
                "step_format_fixed_length": none if is_same else (given[1], None, why),
                "single_host_load_and_broadcast": (
                    self.single_host_load_and_broadcast,
                    False,
                    "the primary process always lists steps for all",
                ),
                "enable_per_process_directory_creation": (
                    self.enable_per_process_directory_creation,
                    False,
                    "MultiprocessingOptions(primary_host=None) lets each process save by itself",
                ),
                "lightweight_initialize": (
                    self.lightweight_initialize,
                    False,
                    "a manager reads names of steps only when it is made",
                ),
                "num_deletion_threads": (
                    self.num_deletion_threads,
                    None,
                    "enable_background_delete deletes without delaying saves",
                ),
            },
        )

    def _check_numbers(self) -> None:
        check_int("save_interval_steps", self.save_interval_steps, least=1)
        counts = {
            "max_to_keep": 0,
            "keep_period": 1,
            "step_format_fixed_length": 0,
            "full_every": 1,
        }
        for name, least in counts.items():
            check_int(name, getattr(self, name), least=least, optional=True)
        if self.keep_time_interval is not None:
            check_duration("keep_time_interval", self.keep_time_interval)
        if self.save_on_steps is not None:
            check_steps("save_on_steps", self.save_on_steps)

    def _check_objects(self) -> None:
        """Check the options that are functions or objects."""
        metric = "Give a function of the metrics, such as lambda metrics: metrics['loss']."
        check_callable("best_fn", self.best_fn, metric)
        advice = "Give a function of the step and the last one saved."
        check_callable("should_save_fn", self.should_save_fn, advice)
        time = "Give a function without arguments that returns a datetime, such as datetime.now."
        check_callable("clock", self.clock, time)
        check_options(
            async_options=self.async_options,
            multiprocessing_options=self.multiprocessing_options,
            file_options=self.file_options,
            atomicity_options=self.atomicity_options,
        )
        directory = "Give the name of a directory."
        check_type("todelete_subdir", self.todelete_subdir, str, "a str", directory)
        check_type("step_prefix", self.step_prefix, str, "a str", "Give 'step', for example.")
        methods = {
            "save_decision_policy": ("should_save", "FixedIntervalPolicy(100)"),
            "preservation_policy": ("should_preserve", "LatestN(3)"),
            "step_name_format": ("build_name", "StepNameFormat('step')"),
        }
        source = "Give TensorBoardMetrics(logdir, 'loss'), for example."
        check_methods("metrics_source", self.metrics_source, ["values", "metric"], source)
        for name, (method, example) in methods.items():
            check_methods(name, getattr(self, name), [method], f"Give {example}, for example.")

    def now(self) -> datetime:
        """Return the time, with a time zone.

        Raises:
            TypeError: The user's clock returned something else.
        """
        if self.clock is None:
            return datetime.now(tz=UTC)
        now: object = self.clock()
        if not isinstance(now, datetime):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's function
            raise TypeError(f"clock returned {show(now)}, expected a datetime. Return a datetime.")
        return now.astimezone(UTC)

    def step_names(self) -> StepNames:
        """Return how steps are named."""
        return self.step_name_format or StepNameFormat(
            self.step_prefix, self.step_format_fixed_length
        )

    def decision_policy(self) -> SaveDecisionPolicy:
        """Return the policy that decides when to save."""
        if self.save_decision_policy is not None:
            return self.save_decision_policy
        if self.should_save_fn is not None:
            rules = [FunctionPolicy(self.should_save_fn), PreemptionCheckpointingPolicy()]
            return AnySavePolicy(rules)
        return AnySavePolicy(
            [
                FixedIntervalPolicy(self.save_interval_steps),
                SpecificStepsPolicy(self.save_on_steps or ()),
                PreemptionCheckpointingPolicy(),
                InitialSavePolicy(),
            ]
        )

    def retention(self) -> RetentionRules:
        """Return the rules that decide what to keep."""
        policy = self.preservation_policy or AnyPreservationPolicy(self._default_preservation())
        return RetentionRules(policy, self.keep_latest, self.item_preservation_policies)

    def _default_preservation(self) -> list[PreservationPolicy]:
        rules: list[PreservationPolicy] = []
        if self.keep_period is not None:
            rules.append(EveryNSteps(self.keep_period))
        if self.keep_time_interval is not None:
            rules.append(EveryNSeconds(self.keep_time_interval.total_seconds()))
        if self.best_fn is None:
            return [*rules, LatestN(self.max_to_keep)]
        best = BestN(
            get_metric_fn=self.best_fn,
            reverse=self.best_mode == "min",
            n=self.max_to_keep,
            keep_checkpoints_without_metrics=self.keep_checkpoints_without_metrics,
        )
        return [*rules, best]


_FLAGS = (
    "keep_checkpoints_without_metrics",
    "create",
    "cleanup_tmp_directories",
    "single_host_load_and_broadcast",
    "enable_background_delete",
    "read_only",
    "enable_async_checkpointing",
    "save_root_metadata",
    "prevent_write_metrics",
    "enable_should_save_is_saving_in_progress_check",
    "enable_per_process_directory_creation",
    "lightweight_initialize",
    "keep_latest",
    "keep_old_temporary_steps",
    "incremental",
)


def own_options(options: object) -> CheckpointManagerOptions:
    """Return a copy of the caller's options; the defaults for None.

    Raises:
        TypeError: `options` has another type, such as dict.
    """
    example = "Give CheckpointManagerOptions(max_to_keep=3), for example."
    kind = CheckpointManagerOptions
    check_type("options", options, kind, "a CheckpointManagerOptions", example)
    return copy.copy(options) if isinstance(options, kind) else kind()


@dataclass(frozen=True)
class _MetricOf:
    """Ranks steps by one metric; steps without it rank lowest."""

    name: str

    def __call__(self, metrics: Mapping[str, float]) -> float:
        return metrics.get(self.name, math.nan)
