"""One proposal under structured rules that must all hold: a verdict by one call of the compiled kernel.

It is the verdict that `BoxJudge` and `VerdictBatch` give, without the arrays of a batch. Whatever is unusual (a rule
that fails, a proposal that is no action, a set that may be empty, any doubt) is left to them.
"""

from types import MappingProxyType, ModuleType

import numpy as np

from rlpd_gx.guardian.continuous import BINDING, BoxJudge
from rlpd_gx.guardian.judgement import ACTION_SPACE, Judgement
from rlpd_gx.guardian.reading import Reader, States, as_batch
from rlpd_gx.rules import Atom
from rlpd_gx.rules.forms import SetForm
from rlpd_gx.safe_sets import ConvexSet, Intersection, compiled
from rlpd_gx.safe_sets.backend import to_numpy
from rlpd_gx.types import Action, Status, Verdict


class Single:
    """Verdicts on single proposals; made by `Single.of` where the kernel can judge them."""

    def __init__(
        self,
        judge: BoxJudge,
        kernel: ModuleType,
        names: tuple[str, ...],
        enforced: bool,
        ungraded: frozenset[str],
    ) -> None:
        self.kernel, self.box, self.space = kernel, judge, judge.space
        self.atoms: tuple[Atom, ...] = judge.alternatives[0]
        self.names, self.enforced, self.ungraded = (ACTION_SPACE, *names), enforced, ungraded
        self.short = judge.space.dtype == np.float32
        self.low, self.high, _ = judge.hard.form
        self.metric = compiled.plain(judge.metric)

    @classmethod
    def of(
        cls, judge: object, names: tuple[str, ...], enforced: bool, ungraded: frozenset[str]
    ) -> "Single | None":
        """None where verdicts need more than the kernel: other rules or dtypes, alternatives, no numba."""
        if not isinstance(judge, BoxJudge) or judge.space.dtype not in (np.float32, np.float64):
            return None
        plain = len(judge.alternatives) == 1 and all(
            isinstance(a.form, SetForm) for a in judge.alternatives[0]
        )
        kernel = compiled.kernel() if plain else None
        return None if kernel is None else cls(judge, kernel, names, enforced, ungraded)

    def judge(self, states: States, proposed: Action) -> Verdict | Judgement:
        """The verdict on one proposal, or the judgement of the general path if that has to find it."""
        reader = Reader(states, warned=self.box.warned)
        sets = {a: reader.convex_set(a, self.box.dimension) for a in self.atoms}
        verdict = None if reader.failures else self._verdict(proposed, tuple(sets.values()))
        if verdict is not None:
            return verdict
        return self.box.judge_read(reader, sets, self.box.well_formed(as_batch(proposed))[0])

    def _verdict(self, proposed: Action, sets: tuple[ConvexSet, ...]) -> Verdict | None:
        try:
            given = to_numpy(proposed)
        except ValueError:
            return None
        if given.shape != self.space.shape or given.dtype.kind not in "biuf":
            return None
        with np.errstate(over="ignore"):
            a = given.astype(self.space.dtype).reshape(-1).astype(np.float64)
        points, margins = np.empty((2, len(a))), np.empty((2, len(self.names)))
        forms = [s.form for s in sets]
        low = np.concatenate([self.low[None], *(f.low for f in forms)])
        high = np.concatenate([self.high[None], *(f.high for f in forms)])
        if len(forms) == 1:
            rows = forms[0].rows
            pos, neg, quad, bound = (
                compiled.plain(v[0]) for v in (rows.pos, rows.neg, rows.quad, rows.bound)
            )
        else:
            pos, neg, quad, bound = (
                np.concatenate([getattr(f.rows, name)[0] for f in forms])
                for name in ("pos", "neg", "quad", "bound")
            )
        counts = [f.rows.bound.shape[-1] for f in forms]
        ends = np.cumsum([0, *counts])
        kinked = any(f.rows.kinked for f, count in zip(forms, counts, strict=True) if count)
        curved = any(f.rows.curved for f, count in zip(forms, counts, strict=True) if count)
        answer, distance = self.kernel.judge(
            a,
            low,
            high,
            self.metric,
            pos,
            neg,
            quad,
            bound,
            ends,
            kinked,
            curved,
            self.short,
            points,
            margins,
        )
        if answer > compiled.MOVED:
            return None
        at_proposed, at_executed = margins.tolist()
        moved = answer == compiled.MOVED
        suggestion = points[1].astype(self.space.dtype).reshape(self.space.shape)
        suggestion.flags.writeable = False
        pairs = zip(self.names, at_proposed, at_executed, strict=True)
        space, *rules = pairs
        binding = [n for n, before, after in rules if before < 0 or (moved and after <= BINDING)]
        if space[1] < 0:
            binding.append(ACTION_SPACE)
        least = min(at_executed[1:]) if self.enforced else min(at_proposed[1:])
        return Verdict(
            proposed=given,
            action=suggestion if self.enforced else given,
            status=Status.PROJECTED if moved else Status.ALLOWED,
            distance=distance,
            margins=MappingProxyType(dict(zip(self.names[1:], at_proposed[1:], strict=True))),
            binding=tuple(binding),
            safe_set=Intersection(self.box.hard, *sets)[0],
            suggestion=suggestion,
            enforced=self.enforced,
            executed_margin=least,
            ungraded=self.ungraded,
        )
