"""One proposal under structured rules that must all hold: a verdict by one call of the compiled kernel.

It is the verdict that `BoxJudge` and `VerdictBatch` give, without the arrays of a batch. Whatever is unusual (a rule
that fails, a proposal that is no action, a set that may be empty, any doubt) is left to them.
"""

from itertools import accumulate
from types import MappingProxyType, ModuleType

import numpy as np

from rlpd_gx.guardian.continuous import BINDING, BoxJudge
from rlpd_gx.guardian.judgement import ACTION_SPACE, Judgement
from rlpd_gx.guardian.reading import Reader, States, as_batch
from rlpd_gx.guardian.verdicts import own
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
        self.names, self.enforced, self.ungraded = names, enforced, ungraded
        self.short = judge.space.dtype == np.float32
        self.low, self.high = judge.hard.low, judge.hard.high
        none = np.empty((0, judge.dimension))
        self.no_rows = (none, none, none, np.empty(0))
        self.metric = compiled.plain(judge.metric)[None]

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
        if given.dtype == self.space.dtype:
            a = given.reshape(1, -1).astype(np.float64)
        else:
            with np.errstate(over="ignore"):
                a = given.reshape(1, -1).astype(self.space.dtype).astype(np.float64)
        points, margins = np.empty((2, self.box.dimension)), np.empty((2, 1 + len(sets)))
        members = [s[0] for s in sets]
        forms = [m.form for m in members]
        low = np.array([self.low, *(f.low for f in forms)])
        high = np.array([self.high, *(f.high for f in forms)])
        rows = [f.rows for f in forms if len(f.rows.bound)]
        if len(rows) == 1:
            arrays = tuple(compiled.plain(v) for v in (rows[0].pos, rows[0].neg, rows[0].quad, rows[0].bound))
        else:
            columns = zip(*((r.pos, r.neg, r.quad, r.bound) for r in rows), strict=True)
            arrays = tuple(np.concatenate(c) for c in columns) or self.no_rows
        shape = (len(arrays[3]), self.box.dimension)
        if any(v.shape != shape for v in arrays[:3]) or low.shape[1:] != shape[1:]:
            return None  # the kernel does not broadcast
        kinked, curved = any(r.kinked for r in rows), any(r.curved for r in rows)
        ends = np.array([0, *accumulate(len(f.rows.bound) for f in forms)])
        answer, distance = self.kernel.judge(
            a,
            low,
            high,
            self.metric,
            *(v[None] for v in arrays),
            ends,
            kinked,
            curved,
            self.short,
            points,
            margins,
        )
        if answer > compiled.MOVED:
            return None
        (space, *at_proposed), (_, *at_executed) = margins.tolist()
        moved = answer == compiled.MOVED
        action = points[1].astype(self.space.dtype).reshape(self.space.shape)
        action.flags.writeable = False
        binding = [
            name
            for name, before, after in zip(self.names, at_proposed, at_executed, strict=True)
            if before < 0 or (moved and after <= BINDING)
        ]
        if space < 0:
            binding.append(ACTION_SPACE)
        given = own(given)
        return Verdict(
            proposed=given,
            action=action if self.enforced else given,
            status=Status.PROJECTED if moved else Status.ALLOWED,
            distance=distance,
            margins=MappingProxyType(dict(zip(self.names, at_proposed, strict=True))),
            binding=tuple(binding),
            safe_set=Intersection(self.box.hard, *members),
            suggestion=action,
            enforced=self.enforced,
            executed_margin=min(at_executed if self.enforced else at_proposed),
            ungraded=self.ungraded,
        )
