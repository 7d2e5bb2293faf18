"""Cached verdicts: with them a discrete verdict costs about a microsecond."""

import copy
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from rlpd_gx.guardian.audit import Audit
from rlpd_gx.guardian.finite import FiniteJudge
from rlpd_gx.guardian.reading import States, as_batch, batch_of_one, read_only
from rlpd_gx.guardian.verdicts import VerdictBatch
from rlpd_gx.rules import Atom
from rlpd_gx.rules.forms import MaskForm
from rlpd_gx.rules.rule import RuleFunction
from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.trees import DType, Tree
from rlpd_gx.types import Action, Context, ContextLike, State, Verdict

CAPACITY = 100_000  # verdicts, where all rules are masks
GRADED_CAPACITY = 20_000  # margins differ more than masks do, and few of the later ones would come again
BOOL, FLOAT = np.dtype(bool), np.dtype(np.float64)
WHOLE = frozenset({int, np.int64, np.int32})


class Asked(NamedTuple):
    """A rule that is asked about one state, and what its usual answer is: a mask, or margins."""

    rule: RuleFunction
    batched: bool
    dtype: DType
    shape: tuple[int, ...]


Key = Any
"""What a verdict is a function of: (answer of the last rule, (..., (answer of the first rule, proposed action)))."""
Entry = tuple[Verdict, Callable[[], object]]
"""A verdict, and what counts that it was given."""


class Said:
    """An answer of a rule that is not the usual one, kept so that the rule is not called again."""

    def __init__(self, answer: Tree = None, error: Exception | None = None) -> None:
        self.answer, self.error = answer, error


def _said(answer: Tree) -> Said:
    """A private copy of an answer; a copy that fails counts as the rule's failure."""
    try:
        return Said(copy.deepcopy(answer))
    except Exception as error:
        return Said(error=error)


Answers = list[Any]
"""Of each rule: the usual answer as bytes, or a `Said`."""
Otherwise = Callable[[State, Action, ContextLike, Action | None, Answers | None], Verdict]
"""(state, proposed, context, preference, answers that the rules have already given) -> the verdict."""


class Memory:
    """A verdict under masks and margins is a function of them and of the proposal: each is computed once.

    Under masks alone, where a verdict costs little else, recalled verdicts are counted here. The counts go to the audit
    when it is read, or at once where a correction is written to a file.
    """

    def __init__(
        self,
        judge: FiniteJudge,
        names: tuple[str, ...],
        enforced: bool,
        audit: Audit,
        ungraded: frozenset[str],
    ) -> None:
        self.names, self.enforced, self.audit, self.ungraded = names, enforced, audit, ungraded
        atoms = [a for r in judge.rules for a in r.atoms()]
        self.masks = all(isinstance(a.form, MaskForm) for a in atoms)
        self.rules = tuple(
            Asked(
                a.fn,
                a.batched,
                BOOL if isinstance(a.form, MaskForm) else FLOAT,
                (1, judge.n) if a.batched else (judge.n,),
            )
            for a in atoms
        )
        self.batched = any(a.batched for a in atoms)
        self.first_action = int(judge.catalogue[0])
        # The same judge, with the rules' answers as the state: no rule is called twice.
        read = [
            Atom(_Answer(i, asked), a.form, a.name, a.batched, shift=a.shift)
            for i, (a, asked) in enumerate(zip(atoms, self.rules, strict=True))
        ]
        self.judge = FiniteJudge(judge.space, read, judge.embedding)
        self.known: dict[Key, Entry] = {}
        self.ticks: dict[Key, Callable[[], int]] = {}  # how often each verdict was given, under masks
        self.handed_over: dict[Key, int] = {}  # how many of each the audit has

    def certifier(self, otherwise: Otherwise) -> Callable[..., Verdict]:
        """`Guardian.certify` from cached verdicts; `otherwise` certifies what is not cached.

        A closure, because attribute lookups would be a large part of the cost of a verdict.
        """
        known, make, ask, parts = self.known, self._made, self._ask, self._parts
        array, whole, protected, rules, some_batched = np.ndarray, WHOLE, read_only, self.rules, self.batched
        several = len(rules) > 1

        def certify(
            state: State,
            proposed: Action,
            *,
            context: ContextLike = None,
            preference: Action | None = None,
        ) -> Verdict:
            if preference is not None or proposed.__class__ not in whole:
                return otherwise(state, proposed, context, preference, None)
            if state.__class__ is array:  # as in `read_only`, but faster
                seen: State = state.view()
                seen.setflags(False)
            else:
                seen = protected(state)
            key, unusual = proposed, None
            # elsewhere a rule might change what the next one sees
            shared = not several or state.__class__ is array
            try:
                alone = protected(batch_of_one(seen)) if some_batched else None
                for rule, batched, dtype, shape in rules:
                    if shared:
                        answer = rule(alone if batched else seen)
                    else:
                        answer = rule(protected(batch_of_one(state) if batched else state))
                    if answer.__class__ is not array or answer.dtype is not dtype or answer.shape != shape:
                        unusual = _said(answer)
                        break
                    key = (answer.tobytes(), key)  # copied at once: two rules may share a buffer
            except Exception as error:
                unusual = Said(error=error)
            if unusual is not None:  # outside the `try`: an error of `otherwise` is not the rule's
                return otherwise(state, proposed, context, None, ask(seen, [*parts(key), unusual]))
            try:
                entry: Entry | None = known[key]
            except KeyError:
                entry = make(key)
            if entry is None:  # the uncached path reports what is wrong
                return otherwise(state, proposed, context, None, parts(key))
            verdict, counted = entry
            counted()
            return verdict

        return certify

    def answers(self, state: State) -> Answers:
        """What every rule says of a state."""
        return self._ask(read_only(state), [])

    def safe_set(self, answers: Answers) -> SafeSet | None:
        """The safe set of these answers, from a verdict under them; None if the uncached path must find it."""
        key: Key = self.first_action
        for answer in answers:
            if not isinstance(answer, bytes):
                return None
            key = (answer, key)
        entry = self.known.get(key) or self._made(key)
        return None if entry is None else entry[0].safe_set

    def _ask(self, state: State, answers: Answers) -> Answers:
        """The answers of the first rules, and of the rest."""
        for rule, batched, dtype, shape in self.rules[len(answers) :]:
            try:
                answer = rule(read_only(batch_of_one(state) if batched else state))
                usual = answer.__class__ is np.ndarray and answer.dtype is dtype and answer.shape == shape
                answers.append(answer.tobytes() if usual else _said(answer))
            except Exception as error:
                answers.append(Said(error=error))
        return answers

    def _parts(self, key: Key) -> Answers:
        """The answers in a key, that of the first rule first."""
        answers: Answers = []
        while isinstance(key, tuple):
            answer, key = key
            answers.append(answer)
        return answers[::-1]

    def _made(self, key: Key) -> Entry | None:
        try:
            return self._make(key)
        except Exception:
            return None

    def _make(self, key: Key) -> Entry | None:
        if len(self.known) >= (CAPACITY if self.masks else GRADED_CAPACITY):
            return None  # evicting entries could lose counts of other threads
        answers, proposed = self._parts(key), key
        while isinstance(proposed, tuple):
            proposed = proposed[1]
        actions, wrong = self.judge.well_formed(as_batch(proposed))
        judgement = self.judge.judge(States.one_state(answers, Context()), actions, None)
        if wrong or judgement.failures:
            return None
        batch = VerdictBatch(
            as_batch(proposed), judgement, self.names, [""], frozenset(), self.enforced, self.ungraded
        )
        verdict = batch[0]
        counted: Callable[[], object] = partial(self.audit.record, verdict)
        if self.masks:
            # One call into C, so threads lose no count; if another thread was faster, its entry is used.
            counted = tick = self.ticks.setdefault(key, count().__next__)
            if verdict.corrected and self.audit.path is not None:
                counted = partial(self._counted_at_once, tick)
        return self.known.setdefault(key, (verdict, counted))

    def _counted_at_once(self, tick: Callable[[], int]) -> None:
        tick()
        self.hand_over()

    def hand_over(self) -> None:
        """Pass the counts to the audit, corrections last."""
        with self.audit.lock:
            given = []
            for key, tick in list(self.ticks.items()):
                total = int(tick.__self__.__reduce__()[1][0])  # type: ignore[attr-defined]  # reading is no tick
                if new := total - self.handed_over.get(key, 0):
                    self.handed_over[key] = total
                    given.append((self.known[key][0], new))
            for verdict, times in sorted(given, key=lambda pair: pair[0].corrected):
                self.audit.record(verdict, times)


class _Answer:
    """A rule that returns the stored answer of rule number `index`."""

    def __init__(self, index: int, asked: Asked) -> None:
        self.index, self.asked = index, asked

    def __call__(self, state: Any) -> Any:
        answers: Answers = state[0] if self.asked.batched else state
        said = answers[self.index]
        if isinstance(said, bytes):
            return np.frombuffer(said, self.asked.dtype).reshape(self.asked.shape)
        if said.error is not None:
            raise said.error
        return said.answer
