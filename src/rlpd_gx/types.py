"""Plain records that travel between the halves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np

from rlpd_gx import trees
from rlpd_gx.safe_sets.base import SafeSet


class Status(StrEnum):
    """What the Guardian did with a proposal."""

    ALLOWED = "allowed"  # executed as proposed
    PROJECTED = "projected"  # moved to the nearest allowed action
    FALLBACK = "fallback"  # a rule, the solver or the proposal failed: a declared action ran instead
    INEVITABLE = "inevitable"  # no action is allowed: the least bad one ran


@dataclass(frozen=True)
class Context:
    """What a rule may need beside the state; a rule declares it with `needs=`."""

    previous_action: Any = None  # the action executed in the step before
    time: Any = 0  # steps since the episode began; [B] in a batch
    parameters: Any = None  # whatever varies in time and is known to the caller


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The Guardian's answer to one proposal.

    `margins` holds the margin of each rule at the *proposed* action; `binding` names the rules that shaped
    the outcome: those the proposal breaks, and those on whose boundary the executed action lies.
    """

    proposed: Any
    action: Any  # what to execute; in monitor mode the proposal itself
    status: Status
    distance: float = 0.0  # from the proposal to `suggestion`
    margins: Mapping[str, float] = field(default_factory=dict)
    binding: tuple[str, ...] = ()
    safe_set: SafeSet | None = None  # None where the rules have no finite description
    exact: bool = True  # whether `suggestion` is proven to be the nearest allowed action
    reason: str = ""
    suggestion: Any = None  # what enforcing the rules executes; None where the episode would have to stop

    @property
    def intervened(self) -> bool:
        """Whether the rules ask for another action than the proposed one."""
        return self.status is not Status.ALLOWED

    @property
    def margin(self) -> float:
        """The least margin of the proposal under the rules that were asked; NaN where none was."""
        return min((m for m in self.margins.values() if m == m), default=float("nan"))

    @property
    def inevitable(self) -> bool:
        """Whether no action at all satisfies the rules."""
        return self.status is Status.INEVITABLE

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Verdict):
            return NotImplemented
        same = (self.status, self.binding, dict(self.margins)) == (
            other.status,
            other.binding,
            dict(other.margins),
        )
        return same and all(
            np.array_equal(a, b) for a, b in ((self.proposed, other.proposed), (self.action, other.action))
        )

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Verdict":
        return self  # nothing in it can change

    def __reduce__(self) -> tuple[Any, ...]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return _verdict, (values | {"margins": dict(self.margins)},)

    def __str__(self) -> str:
        if self.status is Status.ALLOWED:
            return f"allowed {self.proposed}"
        blocked = ", ".join(f"{n} by {-m:.4g}" for n, m in self.margins.items() if m < 0)
        parts = [f"{self.status}: {self.proposed} -> {self.suggestion}"]
        parts += [f"breaks {blocked}"] if blocked else []
        parts += [self.reason] if self.reason else []
        return "; ".join(parts)


def _verdict(values: dict[str, Any]) -> Verdict:
    """A verdict that was sent to another process."""
    return Verdict(**(values | {"margins": MappingProxyType(values["margins"])}))


Array = np.ndarray[Any, Any]
Observation = Array | Mapping[str, Array]
Values = TypeVar("Values")
"""Array as sampled; Tensor in a minibatch that a learner moved to its device."""


@dataclass(frozen=True, eq=False)
class Transition:
    """One step of N environments, as the replay buffer takes it; arrays are [N, ...]."""

    proposed_action: Array
    executed_action: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_observation: Observation
    """What the step led to, also where an episode ended; of stacked frames the newest."""
    margin: Array
    """Least margin of the executed action."""
    unsafe_event: Array
    executed: Array
    """False where the Guardian let nothing run and ended the episode: such a step is not stored."""
    safe_set: Array | None = None
    """[N, code_width] encoded: the sets the actions were chosen from."""
    next_safe_set: Array | None = None
    """[N, code_width] encoded, where an episode was truncated: elsewhere the next step brings it."""
    verdicts: Sequence[Verdict | None] = ()
    """None where there are no rules."""

    @property
    def ended(self) -> Array:
        """[N] bool: these environments must be reset."""
        return self.terminated | self.truncated | ~self.executed


@dataclass(frozen=True, eq=False)
class SpanSteps(Generic[Values]):
    """Every step inside the spans of a batch, for a correction made by the Learner: [U, B, n, ...].

    Steps after the end of a span repeat its last state and action, with reward and discount 0.
    """

    observation: Values | Mapping[str, Values]
    safe_set: Array
    executed_action: Values
    reward: Values
    discount: Values
    """gamma, or 0 where that step terminated."""


@dataclass(frozen=True, eq=False)
class Batch(Generic[Values]):
    """U minibatches of B transitions, each [U, B, ...]; in each minibatch online rows come first.

    A transition spans `span_length` steps (1 unless sampled as spans): the target of its value is
    `reward + discount * V(next_observation)`. `observation` and `next_observation` are views of one block, so
    that frames which both stacks hold are copied once: `torch.from_numpy` takes them as they are.
    """

    observation: Values | Mapping[str, Values]
    """[U, B, ...], or [U, B, stack, ...] oldest first, where frames are stacked."""
    next_observation: Values | Mapping[str, Values]
    executed_action: Values
    """The span's first action, as are the next one and the margin."""
    proposed_action: Values
    reward: Values
    """float32. Discounted sum over the span."""
    discount: Values
    """float32. gamma^span_length, or 0 where the span ended in a terminal state."""
    terminated: Values
    """Of the span's last step, as is `truncated`."""
    truncated: Values
    safe_set: Array
    """[U, B, code_width] encoded, at `observation`."""
    next_safe_set: Array
    """[U, B, code_width] encoded, at `next_observation`."""
    margin: Values
    unsafe_event: Values
    """bool. An unsafe event was seen after any step of the span."""
    is_online: Values
    row: Values
    """int64. Row number in the timeline that `is_online` tells."""
    span_length: Values
    span_steps: SpanSteps[Values] | None = None
    """Only for spans that the Learner corrects."""

    def arrays(self) -> dict[str, Any]:
        """The columns by name."""
        return {name: value for name, value in vars(self).items() if name != "span_steps"}

    def minibatch(self, index: int) -> "Batch[Values]":
        """One of the U minibatches: views [B, ...] of every column."""
        steps = None if self.span_steps is None else SpanSteps(**trees.index(vars(self.span_steps), index))
        return Batch(**trees.index(self.arrays(), index), span_steps=steps)
