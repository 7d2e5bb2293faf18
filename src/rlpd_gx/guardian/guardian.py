"""The Guardian: rules in, verdicts out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rlpd_gx.errors import GxError, StopEpisode
from rlpd_gx.guardian.audit import Audit
from rlpd_gx.guardian.continuous import BoxJudge
from rlpd_gx.guardian.deadline import Deadline, Missed
from rlpd_gx.guardian.finite import JOINT_LIMIT, ComponentJudge, FiniteJudge
from rlpd_gx.guardian.judgement import FALLBACK, Judge, Judgement
from rlpd_gx.guardian.memory import Memory
from rlpd_gx.guardian.reading import States, as_batch
from rlpd_gx.guardian.verdicts import VerdictBatch
from rlpd_gx.rules import Atom, Rule, conjuncts, fingerprint
from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.safe_sets.backend import to_numpy
from rlpd_gx.types import Context, Verdict


class Guardian:
    """Moves every proposed action to the nearest allowed one.

    Args:
        action_space: Discrete, MultiDiscrete or Box.
        rules: a rule, or several that must all hold.
        embedding: places of discrete actions [n, k], between which distances are measured.
        fallback: an action (or state -> action) to run when the rules cannot be asked. It must be safe by
            itself: rules that can still be asked are asked about it, the others are not.
        mode: "enforce", or "monitor": report what would have been blocked and let it through.
        deadline: seconds the rules may take for one verdict.
        metric: weights of the action components in distances (Box spaces) [d].
        near_miss: proposals with a margin below this, in the rule's units, are counted as near misses.
        audit: a file to which interventions are appended, or an `Audit`.
    """

    def __init__(
        self,
        action_space: gym.Space,
        rules: Rule | Iterable[Rule],
        *,
        embedding: Any | None = None,
        fallback: Any | None = None,
        mode: Literal["enforce", "monitor"] = "enforce",
        deadline: float | None = None,
        metric: Any | None = None,
        near_miss: float = 0.05,
        audit: Audit | str | None = None,
    ) -> None:
        self.action_space = action_space
        self.rules = conjuncts(rules)
        if not self.rules:
            raise GxError("a Guardian needs at least one rule")
        if mode not in ("enforce", "monitor"):
            raise GxError(f"mode is 'enforce' or 'monitor', not {mode!r}")
        self.mode, self.fallback = mode, fallback
        self.names = _distinct([r.name for r in self.rules])
        self.needs = frozenset(n for r in self.rules for a in r.atoms() for n in a.needs)
        self._judge = _judge_for(action_space, self.rules, embedding, metric)
        self._deadline = None if deadline is None else Deadline(deadline)
        self._audit = audit if isinstance(audit, Audit) else Audit(audit)
        self.fingerprint = fingerprint(
            str(action_space), [r.fingerprint for r in self.rules], embedding, metric
        )
        self._audit.begin(self.names, near_miss, self.fingerprint)
        self._memory = self._make_memory()

    @property
    def audit(self) -> Audit:
        """What has happened so far."""
        if self._memory is not None:
            self._memory.hand_over()
        return self._audit

    def certify(
        self,
        state: Any,
        proposed: Any,
        *,
        context: Context | Mapping[str, Any] | None = None,
        preference: Any | None = None,
    ) -> Verdict:
        """The verdict on one proposed action.

        `preference` [n] (discrete spaces) breaks ties between equally near actions. Raises `StopEpisode` if the
        rules fail and no fallback is declared or allowed: then nothing may be executed.
        """
        if self._memory is not None and preference is None:
            known = self._memory.recall(state, proposed)
            if known is not None:
                return known
        states = States.one_state(state, _as_context(context))
        prefer = None if preference is None else to_numpy(preference)[None]
        verdict = self._certify(states, as_batch(proposed), prefer)[0]
        self.audit.record(verdict)
        return verdict

    def certify_batch(
        self,
        states: Any,
        proposed: Any,
        *,
        context: Context | Mapping[str, Any] | None = None,
        preference: Any | None = None,
    ) -> VerdictBatch:
        """Verdicts on a batch: states [B, ...] (an array, a dict of arrays, or a list), proposed [B, ...].

        Fields of the context are batched too.
        """
        prefer = None if preference is None else to_numpy(preference)
        many = States.many(states, _as_context(context))
        if len(proposed) != many.count:
            raise GxError(f"{many.count} states but {len(proposed)} proposed actions; give one for each")
        batch = self._certify(many, to_numpy(proposed), prefer)
        self.audit.record_batch(batch)
        return batch

    def safe_sets(self, states: Any, *, context: Context | Mapping[str, Any] | None = None) -> SafeSet | None:
        """The safe sets of a batch of states, or None where the rules have no finite description."""
        many = States.many(states, _as_context(context))
        anything = np.stack([self.action_space.sample() * 0] * many.count)
        judgement = self._judge.judge(many, self._judge.well_formed(anything)[0], None)
        if judgement.failures:
            row, reason = next(iter(judgement.failures.items()))
            raise GxError(f"state {row}: {reason}")
        return judgement.safe_set

    def end_episode(self, *, unsafe_event: bool | None = None) -> None:
        """Tell the audit that an episode is over, and whether what the rules exist to prevent has happened.

        None means that nobody looked.
        """
        self.audit.end_episode(unsafe_event=unsafe_event)

    # --- inside ------------------------------------------------------------------------------------------

    def _certify(self, states: States, proposed: Any, preference: np.ndarray | None) -> VerdictBatch:
        count = states.count
        actions, wrong = self._judge.well_formed(proposed)
        try:
            if self._deadline is None:
                judgement = self._judge.judge(states, actions, preference)
            else:
                judgement = self._deadline.run(lambda: self._judge.judge(states, actions, preference))
        except Missed as late:
            judgement = self._unknown(count, str(late))
        judgement.failures.update(wrong)
        reasons, stopped = [""] * count, {}
        for row, reason in sorted(judgement.failures.items()):
            reasons[row] = reason
            judgement.status[row] = FALLBACK
            judgement.exact[row] = False
            action = self._fall_back(states, row, judgement)
            if action is None:
                stopped[row] = reason
            else:
                judgement.action[row] = action
                judgement.distance[row] = np.nan if row in wrong else self._distance(proposed[row], action)
        if stopped and self.mode == "enforce":
            self.audit.record_stop(stopped)
            where = f"state {min(stopped)}: " if count > 1 else ""
            raise StopEpisode(f"{where}{stopped[min(stopped)]}; no fallback is declared or allowed")
        return VerdictBatch(proposed, judgement, self.names, reasons, frozenset(stopped), self.mode)

    def _fall_back(self, states: States, row: int, judgement: Judgement) -> Any | None:
        """A declared action that no rule forbids, else the previous action if every rule allows it."""
        if self.fallback is not None:
            action = self.fallback(states.one(row, ())[0]) if callable(self.fallback) else self.fallback
            margins = self._margins_at(judgement, row, action)
            if self.action_space.contains(_typed(action, self.action_space)) and not (margins < 0).any():
                return action
        previous = states.one(row, ("previous_action",))[1]["previous_action"]
        if previous is not None and judgement.margin_at is not None:
            margins = self._margins_at(judgement, row, previous)
            if self.action_space.contains(_typed(previous, self.action_space)) and (margins >= 0).all():
                return previous
        return None

    def _margins_at(self, judgement: Judgement, row: int, action: Any) -> np.ndarray:
        """Margins of the rules at an action [R]; NaN for those that cannot be asked."""
        if judgement.margin_at is None:
            return np.full(len(self.rules), np.nan)
        repeated = np.stack([np.asarray(action)] * len(judgement.status))
        try:
            return judgement.margin_at(repeated)[:, row]
        except GxError:
            return np.full(len(self.rules), -np.inf)

    def _unknown(self, count: int, reason: str) -> Judgement:
        """The judgement when no rule has answered."""
        rules = len(self.rules)
        blank = np.stack([np.zeros_like(self.action_space.sample())] * count)
        return Judgement(
            action=blank,
            status=np.full(count, FALLBACK),
            distance=np.full(count, np.nan),
            margins=np.full((rules, count), np.nan),
            binding=np.zeros((rules + 1, count), dtype=bool),
            exact=np.zeros(count, dtype=bool),
            safe_set=None,
            failures=dict.fromkeys(range(count), reason),
        )

    def _distance(self, proposed: Any, action: Any) -> float:
        if isinstance(self.action_space, gym.spaces.Box):
            return float(np.linalg.norm(np.asarray(action, dtype=float) - np.asarray(proposed, dtype=float)))
        return float(np.any(np.asarray(action) != np.asarray(proposed)))

    def _make_memory(self) -> Memory | None:
        """Under plain mask rules on a Discrete space a verdict is a function of the masks and the proposal."""
        plain = all(
            isinstance(r, Atom) and r.form == "mask" and not r.batched and not r.needs for r in self.rules
        )
        if plain and self._deadline is None and isinstance(self.action_space, gym.spaces.Discrete):
            assert isinstance(self._judge, FiniteJudge)
            return Memory(self._judge, self.names, self.mode, self._audit)
        return None


def _judge_for(space: gym.Space, rules: Sequence[Rule], embedding: Any, metric: Any) -> Judge:
    if isinstance(space, gym.spaces.Box):
        if embedding is not None:
            raise GxError("an embedding is for discrete actions; for a Box give a metric")
        if not np.issubdtype(space.dtype, np.floating):
            raise GxError(f"{space} has whole-number components; use MultiDiscrete, or a Box of floats")
        return BoxJudge(space, rules, metric)
    if metric is not None:
        raise GxError("a metric is for Box actions; for discrete ones give an embedding")
    if isinstance(space, gym.spaces.Discrete):
        return FiniteJudge(space, rules, embedding)
    if isinstance(space, gym.spaces.MultiDiscrete):
        joint = np.prod(space.nvec, dtype=np.float64)
        return (FiniteJudge if joint <= JOINT_LIMIT else ComponentJudge)(space, rules, embedding)
    raise GxError(f"a Guardian guards Discrete, MultiDiscrete and Box action spaces, not {space}")


def _as_context(context: Context | Mapping[str, Any] | None) -> Context:
    if context is None:
        return Context()
    return context if isinstance(context, Context) else Context(**context)


def _typed(action: Any, space: gym.Space) -> Any:
    return int(action) if isinstance(space, gym.spaces.Discrete) else np.asarray(action, dtype=space.dtype)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Names with a number behind those that stand more than once."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return tuple(distinct)
