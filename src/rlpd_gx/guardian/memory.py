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
from rlpd_gx.types import Action, Context, State, Verdict

CAPACITY = 100_000
BOOL = np.dtype(bool)
WHOLE = frozenset({int, np.int64, np.int32})


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


Answers = list[bytes | Said]  # of each rule: a plain mask as bytes, or any other answer


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
        self.shape = (judge.n,)
        # The same judge, with the rules' answers as the state: no rule is called twice.
        read: list[Atom] = [mask_rule(_Answer(i), name=a.name) for i, a in enumerate(judge.rules)]
        self.judge = FiniteJudge(judge.space, read, judge.embedding)
        self.known: dict[tuple[bytes, Action], Entry] = {}
        self.handed_over: dict[tuple[bytes, Action], int] = {}  # how many of each the audit has

    def recaller(self) -> Callable[[State, Action], Verdict | Answers | None]:
        """A function (state, proposed) -> the verdict, or the rules' answers if it is not cached.

        None where no rule was called. A closure, because attribute lookups would be a large part of the cost of a
        verdict.
        """
        known, make, hand_over, ask, parts = self.known, self._make, self.hand_over, self._ask, self._parts
        array, boolean, whole, protected = np.ndarray, BOOL, WHOLE, read_only
        shape, first, *others = self.shape, *self.rules

        def recall(state: State, proposed: Action) -> Verdict | Answers | None:
            if proposed.__class__ not in whole:
                return None
            if state.__class__ is array:  # as in `read_only`, but faster
                state = state.view()
                state.setflags(False)
            else:
                state = protected(state)
            try:
                mask = first(state)
            except Exception as error:
                return ask(state, [Said(error=error)])
            if mask.__class__ is not array or mask.dtype is not boolean or mask.shape != shape:
                return ask(state, [_said(mask)])
            code = mask.tobytes()  # copied at once: two rules may share a buffer
            for rule in others:
                try:
                    mask = rule(state)
                except Exception as error:
                    return ask(state, [*parts(code), Said(error=error)])
                if mask.__class__ is not array or mask.dtype is not boolean or mask.shape != shape:
                    return ask(state, [*parts(code), _said(mask)])
                code += mask.tobytes()
            entry = known.get((code, proposed))
            if entry is None:
                try:
                    entry = make(code, proposed)
                except Exception:  # the uncached path reports what is wrong
                    entry = None
                if entry is None:
                    return parts(code)
            verdict, tick, at_once = entry
            tick()
            if at_once:
                hand_over()
            return verdict

        return recall

    def _ask(self, state: State, answers: Answers) -> Answers:
        """The answers of the first rules, and of the rest."""
        for rule in self.rules[len(answers) :]:
            try:
                mask = rule(state)
                plain = mask.__class__ is np.ndarray and mask.dtype is BOOL and mask.shape == self.shape
                answers.append(mask.tobytes() if plain else _said(mask))
            except Exception as error:
                answers.append(Said(error=error))
        return answers

    def _parts(self, code: bytes) -> Answers:
        """The masks that a code was joined from."""
        n = self.shape[0]
        return [code[i : i + n] for i in range(0, len(code), n)]

    def _make(self, code: bytes, proposed: Action) -> Entry | None:
        if len(self.known) >= CAPACITY:  # evicting entries could lose counts of other threads
            return None
        actions, wrong = self.judge.well_formed(as_batch(proposed))
        if wrong:
            return None
        judgement = self.judge.judge(States.one_state(self._parts(code), Context()), actions, None)
        batch = VerdictBatch(
            as_batch(proposed), judgement, self.names, [""], frozenset(), self.enforced, self.ungraded
        )
        verdict = batch[0]
        # If another thread was faster, its entry is used.
        at_once = verdict.corrected and self.audit.path is not None
        return self.known.setdefault((code, proposed), (verdict, count().__next__, at_once))

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
