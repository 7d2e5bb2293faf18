"""Cached verdicts: with them a discrete verdict costs about a microsecond."""

import copy
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from rlpd_gx.guardian.audit import Audit
from rlpd_gx.guardian.finite import FiniteJudge
from rlpd_gx.guardian.reading import States, as_batch, read_only
from rlpd_gx.guardian.verdicts import VerdictBatch
from rlpd_gx.rules import Atom, mask_rule
from rlpd_gx.trees import Tree
from rlpd_gx.types import Action, Context, ContextLike, State, Verdict

CAPACITY = 100_000
BOOL = np.dtype(bool)
WHOLE = frozenset({int, np.int64, np.int32})


Key = Any
"""What a verdict is a function of: (mask of the last rule, (..., (mask of the first rule, proposed action)))."""
Entry = tuple[Verdict, Callable[[], int], bool]
"""A verdict, the counter of how often it was given, and whether each one must be written to a file at once.

Counting is one call into C (`itertools.count`), so threads lose no count.
"""


class Said:
    """An answer of a rule that is not a plain mask, kept so that the rule is not called again."""

    def __init__(self, answer: Tree = None, error: Exception | None = None) -> None:
        self.answer, self.error = answer, error


def _said(mask: Tree) -> Said:
    """A private copy of an answer; a copy that fails counts as the rule's failure."""
    try:
        return Said(copy.deepcopy(mask))
    except Exception as error:
        return Said(error=error)


Answers = list[Any]
"""Of each rule: a mask as bytes, or a `Said`."""
Otherwise = Callable[[State, Action, ContextLike, Action | None, Answers | None], Verdict]
"""(state, proposed, context, preference, answers that mask rules have already given) -> the verdict."""


class Memory:
    """A verdict under mask rules is a function of the masks and the proposal: each is computed once.

    Recalled verdicts are counted here. The counts go to the audit when it is read, or at once where a correction
    is written to a file.
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
        self.rules = tuple(a.fn for r in judge.rules for a in r.atoms())
        # The same judge, with the rules' answers as the state: no rule is called twice.
        read: list[Atom] = [mask_rule(_Answer(i), name=a.name) for i, a in enumerate(judge.rules)]
        self.judge = FiniteJudge(judge.space, read, judge.embedding)
        self.known: dict[Key, Entry] = {}
        self.handed_over: dict[Key, int] = {}  # how many of each the audit has

    def certifier(self, otherwise: Otherwise) -> Callable[..., Verdict]:
        """`Guardian.certify` from cached verdicts; `otherwise` certifies what is not cached.

        A closure, because attribute lookups would be a large part of the cost of a verdict.
        """
        known, make, hand_over, ask, parts = self.known, self._made, self.hand_over, self._ask, self._parts
        array, boolean, whole, protected, rules = np.ndarray, BOOL, WHOLE, read_only, self.rules

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
            try:
                for rule in rules:
                    mask = rule(seen)
                    if mask.__class__ is not array or mask.dtype is not boolean or mask.ndim != 1:
                        unusual = _said(mask)
                        break
                    key = (mask.tobytes(), key)  # copied at once: two rules may share a buffer
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
            verdict, tick, at_once = entry
            tick()
            if at_once:
                hand_over()
            return verdict

        return certify

    def _ask(self, state: State, answers: Answers) -> Answers:
        """The answers of the first rules, and of the rest."""
        for rule in self.rules[len(answers) :]:
            try:
                mask = rule(state)
                plain = mask.__class__ is np.ndarray and mask.dtype is BOOL and mask.ndim == 1
                answers.append(mask.tobytes() if plain else _said(mask))
            except Exception as error:
                answers.append(Said(error=error))
        return answers

    def _parts(self, key: Key) -> Answers:
        """The masks in a key, that of the first rule first."""
        masks: Answers = []
        while isinstance(key, tuple):
            mask, key = key
            masks.append(mask)
        return masks[::-1]

    def _made(self, key: Key) -> Entry | None:
        try:
            return self._make(key)
        except Exception:
            return None

    def _make(self, key: Key) -> Entry | None:
        if len(self.known) >= CAPACITY:  # evicting entries could lose counts of other threads
            return None
        masks, proposed = self._parts(key), key
        while isinstance(proposed, tuple):
            proposed = proposed[1]
        actions, wrong = self.judge.well_formed(as_batch(proposed))
        if wrong or any(len(mask) != self.judge.n for mask in masks):
            return None
        judgement = self.judge.judge(States.one_state(masks, Context()), actions, None)
        batch = VerdictBatch(
            as_batch(proposed), judgement, self.names, [""], frozenset(), self.enforced, self.ungraded
        )
        verdict = batch[0]
        # If another thread was faster, its entry is used.
        at_once = verdict.corrected and self.audit.path is not None
        return self.known.setdefault(key, (verdict, count().__next__, at_once))

    def hand_over(self) -> None:
        """Pass the counts to the audit, corrections last."""
        with self.audit.lock:
            given = []
            for key, (verdict, tick, _) in list(self.known.items()):
                total = int(tick.__self__.__reduce__()[1][0])  # type: ignore[attr-defined]  # reading is no tick
                if new := total - self.handed_over.get(key, 0):
                    self.handed_over[key] = total
                    given.append((verdict, new))
            for verdict, times in sorted(given, key=lambda pair: pair[0].corrected):
                self.audit.record(verdict, times)


class _Answer:
    """A rule that returns the stored answer of rule number `index`."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __call__(self, answers: Answers) -> Any:
        said = answers[self.index]
        if isinstance(said, bytes):
            return np.frombuffer(said, dtype=bool)
        if said.error is not None:
            raise said.error
        return said.answer
