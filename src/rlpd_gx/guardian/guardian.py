"""The Guardian: rules in, verdicts out."""

import copy
import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlpd_gx.errors import GxError, StopEpisode
from rlpd_gx.guardian.audit import Audit
from rlpd_gx.guardian.continuous import BoxJudge
from rlpd_gx.guardian.deadline import Clock, Missed, Worker
from rlpd_gx.guardian.finite import ComponentJudge, FiniteJudge
from rlpd_gx.guardian.judgement import FALLBACK, Judge, Judgement
from rlpd_gx.guardian.memory import Answers, Memory
from rlpd_gx.guardian.reading import States, as_batch
from rlpd_gx.guardian.single import Single
from rlpd_gx.guardian.verdicts import VerdictBatch, own
from rlpd_gx.rules import Atom, Rule, conjuncts, fingerprint
from rlpd_gx.rules.forms import Margins, MaskForm, SetForm
from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.safe_sets.backend import to_numpy
from rlpd_gx.safe_sets.mask import JOINT_LIMIT
from rlpd_gx.trees import Json
from rlpd_gx.types import Action, Context, ContextLike, State, Verdict

NO_CONTEXT = Context()
T = TypeVar("T")


class Guardian:
    """Moves every proposed action to the nearest allowed one.

    Args:
        action_space: Discrete, MultiDiscrete or Box.
        rules: a rule, or several that must all hold.
        embedding: coordinates of discrete actions [n, k]; distances are measured between them.
        fallback: an action of the space (or state -> action) to run when some rule cannot be asked. It must be safe
            by itself: only the rules that can still be asked check it.
        mode: "enforce", or "monitor": report what would have been blocked and let it through.
        deadline: seconds a verdict may take; the Guardian does not wait for a late rule. Half of that time is
            reserved for the fallback if it is a function, or if there are several rules: those that answer alone, while
            another one is late, check it.
        metric: weights of the action components in distances (Box spaces) [d].
        near_miss: proposals with a margin below this, in the rule's units, are counted as near misses.
        audit: a file to which corrections are appended, or an `Audit`.

    Threads may share a Guardian. A copy (`copy.deepcopy`, pickle) has its own counts and writes no file.
    """

    def __init__(
        self,
        action_space: gym.Space,
        rules: Rule | Iterable[Rule],
        *,
        embedding: npt.ArrayLike | None = None,
        fallback: Action | None = None,
        mode: Literal["enforce", "monitor"] = "enforce",
        deadline: float | None = None,
        metric: npt.ArrayLike | None = None,
        near_miss: float = 0.05,
        audit: Audit | str | None = None,
    ) -> None:
        self.action_space = action_space
        self.rules = conjuncts(rules)
        if not self.rules:
            raise GxError("a Guardian needs at least one rule")
        if mode not in ("enforce", "monitor"):
            raise GxError(f"mode is 'enforce' or 'monitor', not {mode!r}")
        if deadline is not None and not deadline > 0:
            raise GxError(f"deadline is a time in seconds, not {deadline!r}")
        self._mode, self.fallback = mode, fallback
        an_action = fallback is not None and (not callable(fallback) or isinstance(fallback, Rule))
        if an_action and (wrong := _wrong(fallback, action_space)):
            raise GxError(f"the fallback is {wrong}; give such an action, or a function state -> action")
        self.names = _distinct([r.name for r in self.rules])
        self.needs = frozenset(n for r in self.rules for a in r.atoms() for n in a.needs)
        self._judge = _judge_for(action_space, self.rules, embedding, metric)
        self.deadline = deadline
        self._rules_worker, self._fallback_worker = Worker("the rules"), Worker("the fallback")
        self._apart: list[tuple[Judge, Worker]] = []  # each rule alone, made when first needed
        self._audit = audit if isinstance(audit, Audit) else Audit(audit)
        plain = [None if v is None else np.asarray(v, dtype=np.float64) for v in (embedding, metric)]
        unseeded = copy.copy(action_space)  # agents seed and sample spaces: that is no other guard
        unseeded.__dict__["_np_random"] = None
        self.fingerprint = fingerprint(unseeded, [r.fingerprint for r in self.rules], plain)
        self._ungraded = frozenset(n for n, r in zip(self.names, self.rules, strict=True) if not r.graded)
        self._audit.begin(self.names, near_miss, self.fingerprint, self._ungraded)
        self._shortcuts()

    def _shortcuts(self) -> None:
        """Quicker ways to a single verdict, where the rules permit one."""
        self._memory = self._make_memory()
        self._quick = None if self._memory is None else self._memory.certifier(self._certify_one)
        if self._quick is not None and type(self).certify is Guardian.certify:
            vars(self)["certify"] = self._quick  # called directly: a method would add a tenth to a verdict
        self._single = Single.of(self._judge, self.names, self.mode == "enforce", self._ungraded)

    def __repr__(self) -> str:
        return f"<Guardian of {self.action_space} under {', '.join(self.names)} ({self.mode})>"

    def __getstate__(self) -> Json:
        state = {k: v for k, v in vars(self).items() if k not in ("_memory", "_quick", "_single", "certify")}
        return state | {"_audit": self.audit}  # including what the memory has counted

    def __setstate__(self, state: Json) -> None:
        self.__dict__.update(state)
        self._shortcuts()

    @property
    def lazy(self) -> bool:
        """Whether a verdict may leave actions untested, since some rule is costly to ask."""
        return any(atom.lazy for rule in self.rules for atom in rule.atoms())

    @property
    def mode(self) -> str:
        """Either "enforce" or "monitor"; settled at construction."""
        return self._mode

    @property
    def audit(self) -> Audit:
        """What has happened so far."""
        if self._memory is not None:
            self._memory.hand_over()
        return self._audit

    def certify(
        self,
        state: State,
        proposed: Action,
        *,
        context: ContextLike = None,
        preference: Action | None = None,
    ) -> Verdict:
        """The verdict on one proposed action.

        `preference` [n] (discrete spaces) breaks ties between equally near actions. Raises `StopEpisode` if the
        rules fail and no fallback is declared or allowed: then nothing may be executed.
        """
        if self._quick is not None:
            return self._quick(state, proposed, context=context, preference=preference)
        return self._certify_one(state, proposed, context, preference)

    def _certify_one(
        self,
        state: State,
        proposed: Action,
        context: ContextLike,
        preference: Action | None,
        answers: Answers | None = None,
    ) -> Verdict:
        states = States.one_state(state, _as_context(context))
        if self._single is not None:
            verdict = self._certify_single(self._single, states, proposed)
        else:
            prefer = None if preference is None else to_numpy(preference)[None]
            verdict = self._certify(states, as_batch(proposed), prefer, answers)[0]
        self.audit.record(verdict)
        return verdict

    def certify_batch(
        self,
        states: State,
        proposed: Action,
        *,
        context: ContextLike = None,
        preference: Action | None = None,
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

    def safe_sets(self, states: State, *, context: ContextLike = None) -> SafeSet | None:
        """The safe sets of a batch of states, or None where the rules have no finite description.

        Lazy rules are asked about every action, unlike in a verdict.
        """
        return self._complete(States.many(states, _as_context(context)), self._judge)

    def safe_set(self, state: State, *, context: ContextLike = None) -> SafeSet | None:
        """The safe set of one state."""
        if self._memory is not None:
            answers = self._memory.answers(state)
            known = self._memory.safe_set(answers)
            if known is not None:
                return known
            safe_sets = self._complete(States.one_state(answers, NO_CONTEXT), self._memory.judge)
        else:
            safe_sets = self._complete(States.one_state(state, _as_context(context)), self._judge)
        return None if safe_sets is None else safe_sets[0]

    def distance(self, proposed: Action, action: Action) -> float:
        """From a proposal to another action, as corrections measure it."""
        return self._judge.distance(proposed, action)

    def described(self) -> "Guardian | None":
        """The same without the rules of a Box that are asked about single actions; None where no rule is left.

        It is in monitor mode: its safe sets contain those of this one, and can always be stored.
        """
        rules = [r for r in self.rules if all(isinstance(a.form, SetForm) for a in r.atoms())]
        return Guardian(self.action_space, rules, mode="monitor") if rules else None

    def taken_over(self, verdict: Verdict, action: Action) -> Verdict:
        """The verdict of a step in which a person acted instead, with their action in it; counted as what ran."""
        found = verdict.taken_over(own(self._typed(action)))
        self.audit.record_takeover(verdict, found)
        return found

    def end_episode(self, *, unsafe_event: int | None = None, corrected: bool | None = None) -> None:
        """Count an episode in the audit, and whether (or how often) an unsafe event happened in it.

        None means that unsafe events were not looked for. `corrected` is needed only where several episodes run in
        parallel.
        """
        self.audit.end_episode(unsafe_event=unsafe_event, corrected=corrected)

    # --- inside ------------------------------------------------------------------------------------------

    def _complete(self, states: States, judge: Judge) -> SafeSet | None:
        blank = judge.well_formed(self.blank_actions(states.count))[0]
        judgement = judge.judge(states, blank, None, complete=True)
        if judgement.failures:
            row, reason = next(iter(judgement.failures.items()))
            raise GxError(f"state {row}: {reason}" if states.count > 1 else reason)
        return judgement.safe_set

    def _certify(
        self,
        states: States,
        proposed: Action,
        preference: np.ndarray | None,
        answers: Answers | None = None,
    ) -> VerdictBatch:
        """`answers`: what the rules have already returned, so that they are not called twice."""
        clock = Clock(self.deadline)
        judge, seen = self._judge, states
        if answers is not None:
            assert self._memory is not None
            judge, seen = self._memory.judge, States.one_state(answers, Context())
        actions, wrong = judge.well_formed(proposed)
        judgement = self._ask(lambda: judge.judge(seen, actions, preference), states.count)
        return self._settle(states, proposed, judgement, wrong, clock)

    def _certify_single(self, single: Single, states: States, proposed: Action) -> Verdict:
        """The verdict by the shortcut if there is one, else from the judgement of the same answers."""
        clock = Clock(self.deadline)
        outcome = self._ask(lambda: single.judge(states, proposed), 1)
        if isinstance(outcome, Verdict):
            return outcome
        wrong = self._judge.well_formed(as_batch(proposed))[1]
        return self._settle(states, as_batch(proposed), outcome, wrong, clock)[0]

    def _ask(self, call: Callable[[], T], count: int) -> T | Judgement:
        """The outcome of asking the rules, within the deadline; a judgement without answers if that fails."""
        reserved = callable(self.fallback) or (self.fallback is not None and len(self.rules) > 1)
        limit = self.deadline / 2 if self.deadline is not None and reserved else self.deadline
        try:
            return self._rules_worker.run(call, limit)
        except Missed as late:
            return self._unknown(count, str(late))
        except Exception as error:  # an error in our own code must not let an action through
            return self._unknown(count, f"internal error, {type(error).__name__}: {error}")

    def _settle(
        self, states: States, proposed: Action, judgement: Judgement, wrong: dict[int, str], clock: Clock
    ) -> VerdictBatch:
        """Verdicts from a judgement: rows that failed, or whose proposal is `wrong`, get a fallback."""
        if wrong:
            judgement.failures.update(wrong)
            judgement.margins[:, list(wrong)] = np.nan
            judgement.binding[:, list(wrong)] = False
        stopped = self._fall_back(states, judgement, clock)
        for row in set(judgement.failures) - set(wrong) - set(stopped):
            judgement.distance[row] = self.distance(proposed[row], judgement.action[row])
        if stopped and self.mode == "enforce":
            self.audit.record_stop(stopped)
            where = f"state {min(stopped)}: " if states.count > 1 else ""
            raise StopEpisode(f"{where}{stopped[min(stopped)]}; no fallback is declared or allowed")
        reasons = [judgement.failures.get(i, "") for i in range(states.count)]
        enforced = self.mode == "enforce"
        return VerdictBatch(
            proposed, judgement, self.names, reasons, frozenset(stopped), enforced, self._ungraded
        )

    def _fall_back(self, states: States, judgement: Judgement, clock: Clock) -> dict[int, str]:
        """Give failed rows a declared action; returns the rows for which there is none, with the reason."""
        stopped = {}
        assert judgement.executed_margins is not None
        for row in sorted(judgement.failures):
            judgement.status[row], judgement.exact[row], judgement.distance[row] = FALLBACK, False, np.nan
            state, context = states.one(row, ("previous_action",))
            found = self._declared(judgement, row, states, state, clock)
            if found is None:
                found = self._previous(judgement, row, context["previous_action"], clock)
            if found is None:
                stopped[row] = judgement.failures[row]
            else:
                judgement.action[row], judgement.executed_margins[:, row] = found
        return stopped

    def _declared(
        self, judgement: Judgement, row: int, states: States, state: State, clock: Clock
    ) -> tuple[Action, np.ndarray] | None:
        """The declared fallback and its margins, unless a rule that can be asked in time forbids it."""
        fallback = self.fallback
        if fallback is None:
            return None
        try:
            if callable(fallback):
                # the rest is for checking it by the rules
                half = None if clock.left is None else clock.left / 2
                fallback = self._fallback_worker.run(partial(fallback, state), half)
                if wrong := _wrong(fallback, self.action_space):
                    judgement.failures[row] += f"; the fallback returned {wrong}"
                    return None
            action = self._typed(fallback)
            if judgement.margin_at is None:
                margins = self._margins_apart(states[np.array([row])], action, clock)
            else:
                margins = self._margins_at(judgement, row, action, clock)
        except Missed as late:
            judgement.failures[row] += f"; {late}"
            return None
        except Exception as error:
            judgement.failures[row] += f"; the fallback raised {type(error).__name__}: {error}"
            return None
        allowed = self.action_space.contains(action) and not (margins < 0).any()
        return (action, margins) if allowed else None

    def _previous(
        self, judgement: Judgement, row: int, action: Action, clock: Clock
    ) -> tuple[Action, np.ndarray] | None:
        """The previous action and its margins, if every rule allows it."""
        if action is None:
            return None
        try:
            action = self._typed(action)
            margins = self._margins_at(judgement, row, action, clock)
        except Exception:  # not an action at all: nothing to fall back to
            return None
        return (action, margins) if self.action_space.contains(action) and (margins >= 0).all() else None

    def _margins_at(self, judgement: Judgement, row: int, action: Action, clock: Clock) -> np.ndarray:
        """Margins at an action [R]; NaN for rules that cannot be asked, or not in the time that is left."""
        ask, unknown = judgement.margin_at, np.full(len(self.rules), np.nan)
        if ask is None:
            return unknown
        try:
            return self._rules_worker.run(lambda: ask(row, action), clock.left)
        except Missed:
            return unknown

    def _margins_apart(self, states: States, action: Action, clock: Clock) -> np.ndarray:
        """Margins at an action [R] of the rules that answer alone; NaN for those that fail or are late.

        All together were late, or failed: which one is not known, so each has its own thread and share of the time.
        """
        found = np.full(len(self.rules), np.nan)
        if not self._apart:
            alone = [_judge_for(self.action_space, [rule], None, None) for rule in self.rules]
            self._apart = [
                (judge, Worker(f"rule {name!r}")) for judge, name in zip(alone, self.names, strict=True)
            ]
        for number, (judge, worker) in enumerate(self._apart):
            share = None if clock.left is None else clock.left / (len(found) - number)
            with suppress(Exception):  # late ones too
                found[number] = worker.run(partial(judge.margins_at, states, action), share)[0]
        return found

    def _typed(self, action: Action) -> Action:
        if isinstance(self.action_space, gym.spaces.Discrete):
            return np.int64(operator.index(action))
        return np.array(to_numpy(action), dtype=self.action_space.dtype)

    def blank_actions(self, count: int) -> np.ndarray:
        """Some array of the actions' shape and dtype [count, ...]."""
        start = np.asarray(getattr(self.action_space, "start", 0))
        shape = self.action_space.shape or ()
        return np.broadcast_to(start, (count, *shape)).astype(self.action_space.dtype)

    def _unknown(self, count: int, reason: str) -> Judgement:
        """The judgement when no rule has answered."""
        rules = len(self.rules)
        return Judgement(
            action=self.blank_actions(count),
            status=np.full(count, FALLBACK),
            distance=np.full(count, np.nan),
            margins=np.full((rules, count), np.nan),
            binding=np.zeros((rules + 1, count), dtype=bool),
            exact=np.zeros(count, dtype=bool),
            safe_set=None,
            failures=dict.fromkeys(range(count), reason),
        )

    def _make_memory(self) -> Memory | None:
        """Under masks and margins on a Discrete space a verdict is a function of them and of the proposal."""
        plain = all(
            isinstance(r, Atom) and isinstance(r.form, MaskForm | Margins) and not r.needs for r in self.rules
        )
        if plain and self.deadline is None and isinstance(self.action_space, gym.spaces.Discrete):
            assert isinstance(self._judge, FiniteJudge)
            enforced = self.mode == "enforce"
            return Memory(self._judge, self.names, enforced, self._audit, self._ungraded)
        return None


def _judge_for(
    space: gym.Space, rules: Sequence[Rule], embedding: npt.ArrayLike | None, metric: npt.ArrayLike | None
) -> Judge:
    if isinstance(space, gym.spaces.Box):
        if embedding is not None:
            raise GxError("an embedding is for discrete actions; for a Box give a metric")
        if not np.issubdtype(space.dtype, np.floating):
            raise GxError(f"{space} has whole-number components; use MultiDiscrete, or a Box of floats")
        if space.dtype.itemsize > 8:
            raise GxError(
                f"{space} is finer than float64, in which rules are judged; use a Box of float64 or float32"
            )
        return BoxJudge(space, rules, metric)
    if metric is not None:
        raise GxError("a metric is for Box actions; for discrete ones give an embedding")
    if isinstance(space, gym.spaces.MultiBinary):
        space = gym.spaces.MultiDiscrete(np.full(space.shape, 2), dtype=space.dtype.type)
    if isinstance(space, gym.spaces.Discrete):
        return FiniteJudge(space, rules, embedding)
    if isinstance(space, gym.spaces.MultiDiscrete):
        joint = np.prod(space.nvec, dtype=np.float64)
        return (FiniteJudge if joint <= JOINT_LIMIT else ComponentJudge)(space, rules, embedding)
    raise GxError(
        f"a Guardian guards Discrete, MultiDiscrete, MultiBinary and Box action spaces, not {space}"
    )


def _wrong(given: Action, space: gym.Space) -> str:
    """Why something is not an action of the space; empty if it is one."""
    shown = " ".join(str(given).split())[:80]
    try:
        value = np.asarray(to_numpy(given))
    except (TypeError, ValueError):  # such as a list of lists of different lengths
        value = np.asarray(None)
    if value.dtype.kind not in ("biuf" if isinstance(space, gym.spaces.Box) else "biu"):
        wanted = "numbers" if isinstance(space, gym.spaces.Box) else "whole numbers"
        return f"{shown!r}, which is not made of {wanted} like an action of {space}"
    if value.shape != space.shape:
        return f"{shown} of shape {value.shape}, but an action of {space} has shape {space.shape}"
    with np.errstate(over="ignore"):
        inside = space.contains(value.astype(space.dtype))
    if inside and np.isfinite(value).all():
        return ""
    return f"{shown}, which is not finite" if np.isnan(value).any() else f"{shown}, which is outside {space}"


def _as_context(context: ContextLike) -> Context:
    if context is None:
        return NO_CONTEXT
    return context if isinstance(context, Context) else Context(**context)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Names, with a number appended to repeated ones."""
    distinct: list[str] = []
    for name in names:
        number = 1
        while (candidate := name if number == 1 else f"{name} #{number}") in distinct:
            number += 1
        distinct.append(candidate)
    return tuple(distinct)
