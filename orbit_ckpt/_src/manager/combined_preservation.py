"""Policies that combine others, and which policy keeps which step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from orbit_ckpt._src.manager.preservation import (
    GIVE_POLICY,
    LatestN,
    PreservationContext,
    PreservationPolicy,
    PreserveAll,
)
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.runtime.checks import check_elements, check_methods


class AmongPermanent(Struct, frozen=True):
    """Apply another policy to the permanent steps only.

    Attributes:
        policy: The policy; it does not see temporary steps.
    """

    policy: PreservationPolicy

    def __post_init__(self) -> None:
        check_methods("AmongPermanent.policy", self.policy, ["should_preserve"], GIVE_POLICY)

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return the policy's answers, and False for temporary steps."""
        permanent = [info for info in checkpoints if not info.temporary]
        answers = iter(self.policy.should_preserve(permanent, context=context))
        return [False if info.temporary else next(answers) for info in checkpoints]


class AnyPreservationPolicy(Struct, frozen=True):
    """Keep steps that at least one of several policies keeps.

    Attributes:
        policies: The policies.
    """

    policies: Sequence[PreservationPolicy]

    def __post_init__(self) -> None:
        check_elements(
            "AnyPreservationPolicy.policies", self.policies, ["should_preserve"], GIVE_POLICY
        )

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True where any policy does."""
        return _columns(any, self.policies, checkpoints, context)


class AllPreservationPolicy(Struct, frozen=True):
    """Keep steps that every one of several policies keeps.

    Attributes:
        policies: The policies.
    """

    policies: Sequence[PreservationPolicy]

    def __post_init__(self) -> None:
        check_elements(
            "AllPreservationPolicy.policies", self.policies, ["should_preserve"], GIVE_POLICY
        )

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True where all policies do."""
        return _columns(all, self.policies, checkpoints, context)


class InTurn(Struct, frozen=True):
    """Apply policies in turn; each sees only the steps that those before it did not keep.

    `InTurn([EveryNSteps(1000), LatestN(3)])` keeps the multiples of 1000 and three more steps.
    Every policy also sees the newest step.

    Attributes:
        policies: The policies, in order.
    """

    policies: Sequence[PreservationPolicy]

    def __post_init__(self) -> None:
        check_elements("InTurn.policies", self.policies, ["should_preserve"], GIVE_POLICY)

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True for the steps that one of the policies keeps."""
        # Invariant: `kept` holds the indices that the policies so far keep. A step in it is hidden
        # from the later ones, so that it does not use up their quota (`LatestN(3)` counts three
        # more steps). The last step stays visible: policies that measure from the newest step must
        # see it.
        kept: set[int] = set()
        last = len(checkpoints) - 1
        for policy in self.policies:
            seen = [i for i in range(len(checkpoints)) if i not in kept or i == last]
            answers = policy.should_preserve([checkpoints[i] for i in seen], context=context)
            kept |= {i for i, wanted in zip(seen, answers, strict=True) if wanted}
        return [i in kept for i in range(len(checkpoints))]


def is_unlimited(policy: PreservationPolicy) -> bool:
    """Return whether a policy keeps every step unconditionally; False if unsure."""
    match policy:
        case PreserveAll() | LatestN(n=None):
            return True
        case AnyPreservationPolicy():
            return any(map(is_unlimited, policy.policies))
        case _:
            return False


def explain(
    policy: PreservationPolicy, checkpoints: Sequence[StepInfo], *, context: PreservationContext
) -> list[tuple[PreservationPolicy, ...]]:
    """Return for each step the elementary policies, within a combined one, that keep it.

    Raises:
        ValueError: A policy does not answer for every step.
    """
    # Only an "any" splits into its parts: each part sees every step, so its answers alone keep a
    # step. "All" and "in turn" stay whole, since what one part answers depends on the others.
    # `AmongPermanent` adds no reason of its own: the answers of the policy inside, computed on the
    # permanent steps, are laid back over the full list with none for the temporary ones.
    if isinstance(policy, AnyPreservationPolicy):
        together: list[tuple[PreservationPolicy, ...]] = [()] * len(checkpoints)
        for part in policy.policies:
            for i, found in enumerate(explain(part, checkpoints, context=context)):
                if found:  # most parts keep few steps
                    together[i] += found
        return together
    if isinstance(policy, AmongPermanent):
        permanent = [info for info in checkpoints if not info.temporary]
        rules = iter(explain(policy.policy, permanent, context=context))
        return [() if info.temporary else next(rules) for info in checkpoints]
    wanted = policy.should_preserve(checkpoints, context=context)
    if len(wanted) != len(checkpoints):
        raise ValueError(f"{policy} answers for {len(wanted)} of {len(checkpoints)} steps.")
    one, none = (policy,), ()  # shared, because runs have tens of thousands of steps
    if not any(wanted):
        return [none] * len(wanted)
    return [one if keep else none for keep in wanted]


def _columns(
    combine: Callable[[Iterable[bool]], bool],
    policies: Sequence[PreservationPolicy],
    checkpoints: Sequence[StepInfo],
    context: PreservationContext,
) -> list[bool]:
    answers = [policy.should_preserve(checkpoints, context=context) for policy in policies]
    return [combine(answer[i] for answer in answers) for i in range(len(checkpoints))]
