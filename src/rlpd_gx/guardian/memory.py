"""Remembered verdicts: what makes a discrete verdict cost a microsecond."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rlpd_gx.guardian.audit import Audit
from rlpd_gx.guardian.finite import FiniteJudge
from rlpd_gx.guardian.reading import States, as_batch, read_only
from rlpd_gx.guardian.verdicts import VerdictBatch
from rlpd_gx.rules import mask_rule
from rlpd_gx.types import Context, Verdict

CAPACITY = 100_000
VERDICT, TALLY, TOLD = range(3)  # an entry
BOOL = np.dtype(bool)
WHOLE = frozenset({int, np.int64, np.int32})


class Memory:
    """Verdicts under mask rules follow from the masks and the proposal alone: each is made once.

    Verdicts recalled are tallied here and handed to the audit when somebody looks at it, or at once where a file
    wants to hear of an intervention.
    """

    def __init__(self, judge: FiniteJudge, names: tuple[str, ...], mode: str, audit: Audit) -> None:
        self.names, self.mode, self.audit = names, mode, audit
        self.rules = tuple(a.fn for r in judge.rules for a in r.atoms())
        self.shape = (judge.n,)
        # The same judge, with the masks themselves as the state: no rule is called twice.
        read = [mask_rule(lambda masks, i=i: masks[i], name=n) for i, n in enumerate(names)]
        self.judge = FiniteJudge(judge.space, read, judge.embedding)
        self.known: dict[tuple[bytes, Any], list[Any]] = {}

    def recaller(self) -> Callable[[Any, Any], Verdict | None]:
        """A function (state, proposed) -> the verdict, or None if it has to be found the long way.

        A closure, because what an attribute costs is a good part of what a verdict costs.
        """
        known, rules, make, hand_over = self.known, self.rules, self._make, self.hand_over
        only = rules[0] if len(rules) == 1 else None
        array, boolean, whole = np.ndarray, BOOL, WHOLE

        def recall(state: Any, proposed: Any) -> Verdict | None:
            if proposed.__class__ not in whole:
                return None
            try:
                if only is not None:
                    mask = only(state)
                    if mask.__class__ is not array or mask.dtype is not boolean:
                        return None
                    key = (mask.tobytes(), proposed)
                else:
                    code, seen = b"", read_only(state)
                    for rule in rules:
                        mask = rule(seen)
                        if (
                            mask.__class__ is not array
                            or mask.dtype is not boolean
                            or mask.shape != self.shape
                        ):
                            return None
                        code += mask.tobytes()  # at once: two rules may share a buffer
                    key = (code, proposed)
                entry = known.get(key)
                if entry is None:
                    entry = make(key, mask.shape)
            except Exception:  # the long way says what is wrong
                return None
            if entry is None:
                return None
            entry[1] += 1
            if entry[2]:  # somebody wants to hear of it at once
                hand_over()
            return entry[0]

        return recall

    def _make(self, key: tuple[bytes, Any], shape: tuple[int, ...]) -> list[Any] | None:
        code, proposed = key
        if shape != self.shape:
            return None
        masks = np.frombuffer(code, dtype=bool).reshape(len(self.rules), *self.shape)
        actions, wrong = self.judge.well_formed(as_batch(proposed))
        if wrong:
            return None
        judgement = self.judge.judge(States.one_state(masks, Context()), actions, None)
        batch = VerdictBatch(as_batch(proposed), judgement, self.names, [""], frozenset(), self.mode)
        verdict = batch[0]
        if len(self.known) >= CAPACITY:
            self.hand_over()
            self.known.clear()
        told = verdict.intervened and self.audit.path is not None
        self.known[key] = [verdict, 0, told]
        return self.known[key]

    def hand_over(self) -> None:
        """Give the tallies to the audit, interventions last."""
        waiting = [e for e in self.known.values() if e[TALLY]]
        for entry in sorted(waiting, key=lambda e: e[VERDICT].intervened):
            self.audit.record(entry[VERDICT], entry[TALLY])
            entry[TALLY] = 0
