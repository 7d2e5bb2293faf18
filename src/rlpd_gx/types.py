"""Plain records that pass between Guardian, Learner, replay and loop."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from rlpd_gx import trees
from rlpd_gx.safe_sets.base import SafeSet
from rlpd_gx.trees import Json, JsonMapping

Array = np.ndarray[Any, Any]
Observation = Array | Mapping[str, Array]
Action = Any  # one action or a batch of them, as the action space holds it: a number or an array
State = Any  # what a rule reads: the observation, `info`, RAM, or the simulator itself
Info = Json  # Gymnasium's `info`
HUMAN_ACTION = "intervene_action"  # in `info` where a person took over, as wrappers of HIL-SERL report it


class Status(StrEnum):
    """What the Guardian did with a proposal."""

    ALLOWED = "allowed"  # executed as proposed
    PROJECTED = "projected"  # the nearest allowed action ran, or the one that a guard chose in its place
    FALLBACK = "fallback"  # a rule, the solver or the proposal failed: a declared action ran instead
    INEVITABLE = "inevitable"  # no action is allowed: the least bad one ran


@dataclass(frozen=True)
class Context:
    """What a rule may need beside the state; a rule declares it with `needs=`."""

    previous_action: Action | None = None  # the action executed in the step before
    time: Any = 0  # steps since the episode began; [B] in a batch
    parameters: Any = None  # anything else that varies in time, given by the caller


ContextLike = Context | JsonMapping | None


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The Guardian's answer to one proposal.

    `margins` holds the margin of each rule at the *proposed* action; `binding` names the rules that shaped
    the outcome: those the proposal breaks, and those on whose boundary the executed action is.
    """

    proposed: Action
    action: Action  # what to execute; in monitor mode the proposal itself; after a takeover what a person did
    status: Status
    distance: float = 0.0  # from the proposal to `suggestion`
    margins: Mapping[str, float] = field(default_factory=dict)
    binding: tuple[str, ...] = ()
    safe_set: SafeSet | None = None  # None where the rules have no finite description
    exact: bool = True  # whether `suggestion` is proven to be the nearest allowed action
    reason: str = ""
    suggestion: Action = None  # what enforcing the rules executes; None where the episode would have to stop
    enforced: bool = True  # False in monitor mode: `action` is always the proposal
    executed_margin: float = float("nan")  # least margin at `action`; NaN where no rule could be asked
    ungraded: frozenset[str] = frozenset()  # rules whose margins are no distance to their boundary

    @property
    def corrected(self) -> bool:
        """Whether the rules ask for another action than the proposed one."""
        return self.status is not Status.ALLOWED

    @property
    def stopped(self) -> bool:
        """Whether the rules allow nothing to be executed; only in monitor mode, otherwise the episode stops."""
        return self.status is Status.FALLBACK and self.suggestion is None

    @property
    def margin(self) -> float:
        """The least margin of the proposal under the rules that were asked; NaN where none was."""
        return min((m for m in self.margins.values() if m == m), default=float("nan"))

    @property
    def inevitable(self) -> bool:
        """Whether no action at all satisfies the rules."""
        return self.status is Status.INEVITABLE

    @property
    def executes_forbidden(self) -> bool:
        """Whether `action` breaks a rule, as far as the rules could be asked."""
        return bool(self.executed_margin < 0 or self.inevitable)

    def taken_over(self, action: Action) -> "Verdict":
        """The verdict on the same proposal where a person acted instead: `action` and its margin are theirs.

        The margin is that of the safe set, since the rules cannot be asked about a state that has passed; NaN where
        the set does not tell.
        """
        margin = float("nan")
        # where a rule failed, the others are not the whole set
        if self.safe_set is not None and not self.reason:
            flat = np.asarray(action)
            margin = float(self.safe_set.margin(flat.ravel() if flat.ndim > 1 else flat))
        return replace(self, action=action, executed_margin=margin)

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

    def __deepcopy__(self, memo: dict[int, object]) -> "Verdict":
        return self  # nothing in it can change

    def __reduce__(self) -> tuple[object, ...]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return _verdict, (values | {"margins": dict(self.margins)},)

    def __str__(self) -> str:
        if self.status is Status.ALLOWED:
            return f"allowed {self.proposed}"
        blocked = ", ".join(f"{n} by {-m:.4g}" for n, m in self.margins.items() if m < 0)
        parts = [f"{self.status}: {self.proposed} -> {self.suggestion}"]
        parts += [f"breaks {blocked}"] if blocked else []
        parts += [self.reason] if self.reason else []
        parts += [] if self.enforced else ["not enforced"]
        return "; ".join(parts)


def _verdict(values: Json) -> Verdict:
    """A verdict that was sent to another process."""
    return Verdict(**(values | {"margins": MappingProxyType(values["margins"])}))


def executed_action(proposed: Action, info: Info, dtype: Any) -> Action:
    """What ran in a step: the action in its verdict, or without a guard that of a person, or the proposal."""
    if (verdict := info.get("guardian")) is not None:
        return verdict.action
    return np.asarray(info[HUMAN_ACTION], dtype) if HUMAN_ACTION in info else proposed


MOST_REASONS = 20  # different reasons counted separately in a tally


@dataclass
class RuleTally:
    """What is counted of one rule."""

    blocked: int = 0  # proposals that broke it
    near_misses: int = 0  # proposals it allowed by less than the near-miss margin
    deepest: float = 0.0  # the most by which a proposal broke it, in its own units
    depth: float = 0.0  # the sum of that over all proposals

    def __add__(self, other: "RuleTally") -> "RuleTally":
        return RuleTally(
            self.blocked + other.blocked,
            self.near_misses + other.near_misses,
            max(self.deepest, other.deepest),
            self.depth + other.depth,
        )


class Verdicts(Protocol):
    """A batch of B verdicts, as a tally reads them."""

    @property
    def status(self) -> Sequence[Status]: ...
    @property
    def margins(self) -> Mapping[str, np.ndarray]: ...
    @property
    def executed_margin(self) -> np.ndarray: ...
    @property
    def distance(self) -> np.ndarray: ...
    @property
    def exact(self) -> np.ndarray: ...
    @property
    def reasons(self) -> Sequence[str]: ...
    @property
    def stopped(self) -> frozenset[int]: ...
    @property
    def ungraded(self) -> frozenset[str]: ...


@dataclass
class Tally:
    """Everything that is counted of proposals, corrections and unsafe events, in training and in evaluation.

    proposals = allowed + projected + fallback + inevitable + stopped.
    """

    proposals: int = 0
    allowed: int = 0  # executed as proposed, also where there is no guard
    projected: int = 0
    fallback: int = 0
    inevitable: int = 0
    stopped: int = 0  # nothing could be executed: the episode had to end, or would have in monitor mode
    not_exact: int = 0  # corrected, but not provably to the nearest allowed action
    near_misses: int = 0  # allowed proposals with a graded margin below the near-miss margin
    near_misses_executed: int = 0  # those of them that ran as proposed
    forbidden_proposals: int = 0  # some rule is broken by the proposed action
    forbidden_executed: int = 0  # ... by the executed one: monitor mode, a person, or none was allowed
    distance: float = 0.0  # sum over all corrections
    largest_distance: float = 0.0
    unsafe_events: int = 0
    episodes: int = 0
    episodes_corrected: int = 0  # those with a correction
    episodes_watched: int = 0  # those in which unsafe events were looked for
    episodes_with_unsafe_event: int = 0
    rules: dict[str, RuleTally] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def corrections(self) -> int:
        """Proposals that were not executed as they were."""
        return self.proposals - self.allowed

    @property
    def mean_distance(self) -> float:
        """Of the corrections that executed an action."""
        return self.distance / max(self.projected + self.fallback + self.inevitable, 1)

    def add(
        self, verdict: Verdict | None, near_miss: float, times: int = 1, *, unsafe_event: bool = False
    ) -> None:
        """Count a proposal that got this verdict, `times` times; None where there is no guard."""
        self.proposals += times
        self.unsafe_events += times * bool(unsafe_event)
        if verdict is None:
            self.allowed += times
            return
        broken = close = False
        for name, margin in verdict.margins.items():
            rule = self.rules.get(name) or self.rules.setdefault(name, RuleTally())
            if margin < 0:
                broken = True
                rule.blocked += times
                rule.deepest = max(rule.deepest, -margin)
                rule.depth -= times * margin
            elif margin < near_miss and name not in verdict.ungraded:
                close = True
                rule.near_misses += times
        near = times * (close and not broken)
        self.near_misses += near
        self.forbidden_proposals += times * broken
        self.forbidden_executed += times * verdict.executes_forbidden
        if verdict.status is Status.ALLOWED:
            self.allowed += times
            self.near_misses_executed += near
            return
        self._count("stopped" if verdict.stopped else verdict.status, times)
        self.not_exact += times * (not verdict.exact)
        if np.isfinite(verdict.distance):
            self.distance += times * verdict.distance
            self.largest_distance = max(self.largest_distance, verdict.distance)
        if verdict.reason:
            self.add_reason(verdict.reason, times)

    def add_batch(self, batch: Verdicts, near_miss: float) -> None:
        """Count a batch of verdicts as if each were added."""
        status = np.array(batch.status, dtype=object)
        allowed, stopped = status == Status.ALLOWED, np.isin(np.arange(len(status)), list(batch.stopped))
        self.proposals += len(status)
        for name, number in Counter(status[~stopped].tolist()).items():
            self._count(name, number)
        self.stopped += int(stopped.sum())
        broken, close = np.zeros((2, len(status)), dtype=bool)
        for name, margins in batch.margins.items():
            rule = self.rules.setdefault(name, RuleTally())
            depth = -margins[margins < 0]
            broken |= margins < 0
            rule.blocked += len(depth)
            rule.deepest = max(rule.deepest, float(depth.max(initial=0.0)))
            with np.errstate(over="ignore"):  # near the largest number they add up to infinity
                rule.depth += float(depth.sum())
            if name not in batch.ungraded:
                near = (margins >= 0) & (margins < near_miss)
                close |= near
                rule.near_misses += int(near.sum())
        close &= ~broken
        self.near_misses += int(close.sum())
        self.near_misses_executed += int((close & allowed).sum())
        self.forbidden_proposals += int(broken.sum())
        self.forbidden_executed += int(((batch.executed_margin < 0) | (status == Status.INEVITABLE)).sum())
        self.not_exact += int((~batch.exact & ~allowed).sum())
        distance = batch.distance[~allowed & np.isfinite(batch.distance)]
        self.distance += float(distance.sum())
        self.largest_distance = max(self.largest_distance, float(distance.max(initial=0.0)))
        for reason in filter(None, batch.reasons):
            self.add_reason(reason)

    def add_stop(self, reason: str) -> None:
        """Count a proposal in whose place nothing could be executed."""
        self.proposals += 1
        self.stopped += 1
        self.add_reason(reason)

    def add_reason(self, reason: str, times: int = 1) -> None:
        """Count why something failed."""
        key = reason if reason in self.reasons or len(self.reasons) < MOST_REASONS else "other reasons"
        self.reasons[key] = self.reasons.get(key, 0) + times

    def end_episode(self, *, corrected: bool, unsafe_events: int | None) -> None:
        """Count an episode that ended; `unsafe_events` in it are None where they were not looked for.

        Here they are counted by episode; `add` counts them by step.
        """
        self.episodes += 1
        self.episodes_corrected += corrected
        self.episodes_watched += unsafe_events is not None
        self.episodes_with_unsafe_event += bool(unsafe_events)

    def rates(self) -> dict[str, float]:
        """Counts as fractions of the proposals."""
        proposals = max(self.proposals, 1)
        return {f"{name}_rate": getattr(self, name) / proposals for name in RATES}

    def as_dict(self) -> Json:
        """All counts, as JSON can hold them; for `from_dict`."""
        return {**asdict(self), "corrections": self.corrections}

    @classmethod
    def from_dict(cls, values: JsonMapping) -> Self:
        """The tally that `as_dict` wrote; what is not a field is ignored."""
        given = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        rules = {name: RuleTally(**rule) for name, rule in given.get("rules", {}).items()}
        return cls(**{**given, "rules": rules, "reasons": dict(given.get("reasons", {}))})

    def __add__(self, other: "Tally") -> "Tally":
        total = Tally()
        for name, value in vars(self).items():
            if name not in ("rules", "reasons", "largest_distance"):
                setattr(total, name, value + getattr(other, name))
        total.largest_distance = max(self.largest_distance, other.largest_distance)
        for name in [*self.rules, *(n for n in other.rules if n not in self.rules)]:
            total.rules[name] = self.rules.get(name, RuleTally()) + other.rules.get(name, RuleTally())
        total.reasons = dict(Counter(self.reasons) + Counter(other.reasons))
        return total

    def _count(self, status: str, times: int) -> None:
        setattr(self, status, getattr(self, status) + times)


RATES = (
    "corrections",
    "projected",
    "fallback",
    "inevitable",
    "stopped",
    "near_misses",
    "near_misses_executed",
    "forbidden_proposals",
    "forbidden_executed",
    "unsafe_events",
)


Values = TypeVar("Values")
"""Array as sampled; Tensor in a minibatch that a learner moved to its device."""


@dataclass(frozen=True)
class Episode:
    """A finished episode as it is reported: unclipped, and over the whole game where a lost life ends the Learner's."""

    score: float
    length: int
    corrections: int
    unsafe_events: int | None
    """None where nothing reports them."""
    success_steps: int | None = None
    """Steps whose info reports success; None where the environment never does."""
    human_steps: int = 0
    """Steps in which a person acted instead of the policy."""
    stopped: bool = False
    """Ended by the Guardian, which let nothing run; that proposal is one of the corrections, but not a step."""
    env: int = 0
    """Which of several environments it ran in."""


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
    """False where the Guardian let nothing run and ended the episode; such a step is not stored."""
    safe_set: Array | None = None
    """[N, code_width] encoded: the sets the actions were chosen from."""
    next_safe_set: Array | None = None
    """[N, code_width] encoded, where an episode was truncated: elsewhere it comes with the next step."""
    verdicts: Sequence[Verdict | None] = ()
    """None where there are no rules, and where nothing was executed."""
    stop_reasons: Sequence[str] = ()
    """Why nothing was executed; empty texts elsewhere."""

    @property
    def ended(self) -> Array:
        """[N] bool: these environments must be reset."""
        return self.terminated | self.truncated | ~self.executed


@dataclass(frozen=True, eq=False)
class SpanSteps(Generic[Values]):
    """Every step inside the spans of a batch, for an off-policy correction by the Learner: [U, B, n, ...].

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
    frames in both stacks are copied once; `torch.from_numpy` takes them as they are.
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
    """int64. Row number in the online or offline timeline (see `is_online`)."""
    span_length: Values
    span_steps: SpanSteps[Values] | None = None
    """Only for spans that the Learner corrects."""

    def arrays(self) -> Json:
        """The columns by name."""
        return {name: value for name, value in vars(self).items() if name != "span_steps"}

    def minibatch(self, index: int) -> "Batch[Values]":
        """One of the U minibatches: views [B, ...] of every column."""
        steps = None if self.span_steps is None else SpanSteps(**trees.index(vars(self.span_steps), index))
        return Batch(**trees.index(self.arrays(), index), span_steps=steps)
