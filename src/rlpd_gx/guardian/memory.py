"""Remembered verdicts: what makes a discrete verdict cost a microsecond."""

from typing import Any

import numpy as np

from rlpd_gx.guardian.audit import Audit
from rlpd_gx.guardian.finite import FiniteJudge
from rlpd_gx.guardian.reading import States, as_batch
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
        self.only = self.rules[0] if len(self.rules) == 1 else None
        self.shape = (judge.n,)
        # The same judge, with the masks themselves as the state: no rule is called twice.
        read = [mask_rule(lambda masks, i=i: masks[i], name=n) for i, n in enumerate(names)]
        self.judge = FiniteJudge(judge.space, read, judge.embedding)
        self.known: dict[tuple[bytes, Any], list[Any]] = {}

    def recall(self, state: Any, proposed: Any) -> Verdict | None:
        """The verdict, or None if it has to be found the long way."""
        if proposed.__class__ not in WHOLE:
            return None
        try:
            if self.only is not None:
                mask = self.only(state)
                if mask.__class__ is not np.ndarray or mask.dtype is not BOOL or mask.shape != self.shape:
                    return None
                key = (mask.tobytes(), proposed)
            else:
                masks = [fn(state) for fn in self.rules]
                if any(
                    m.__class__ is not np.ndarray or m.dtype is not BOOL or m.shape != self.shape
                    for m in masks
                ):
                    return None
                key = (b"".join([m.tobytes() for m in masks]), proposed)
        except Exception:  # the long way says what is wrong
            return None
        entry = self.known.get(key)
        if entry is None:
            entry = self._make(key, [mask] if self.only is not None else masks, proposed)
            if entry is None:
                return None
        entry[TALLY] += 1
        if entry[TOLD]:
            self.hand_over()
        return entry[VERDICT]

    def _make(self, key: tuple[bytes, Any], masks: list[np.ndarray], proposed: Any) -> list[Any] | None:
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
