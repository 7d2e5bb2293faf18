"""Verdicts on a batch of proposals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from rlpd_gx.guardian.judgement import ACTION_SPACE, PROJECTED, STATUSES, Judgement, least
from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.types import Action, Status, Verdict


@dataclass(frozen=True)
class VerdictBatch:
    """Verdicts on a batch. `action` [B, ...] is what to execute; index it for single verdicts."""

    proposed: np.ndarray
    judgement: Judgement
    names: tuple[str, ...]
    reasons: Sequence[str]
    stopped: frozenset[int]
    enforced: bool
    ungraded: frozenset[str] = frozenset()

    @property
    def action(self) -> np.ndarray:
        """What to execute [B, ...]."""
        return self.judgement.action if self.enforced else self.proposed

    @property
    def corrected(self) -> np.ndarray:
        """Where the rules ask for another action than the proposed one [B]."""
        return self.judgement.status != 0

    @property
    def status(self) -> list[Status]:
        """The status of each."""
        return [STATUSES[i] for i in self.judgement.status]

    @property
    def distance(self) -> np.ndarray:
        """Distance from each proposal to its correction [B]."""
        return self.judgement.distance

    @property
    def margins(self) -> dict[str, np.ndarray]:
        """Margin of each rule at the proposed actions, [B] each."""
        return dict(zip(self.names, self.judgement.margins, strict=True))

    @cached_property
    def executed_margin(self) -> np.ndarray:
        """The least margin at the executed actions [B], over the rules that could be asked; else NaN."""
        j = self.judgement
        if not self.enforced:
            return least(j.margins)
        assert j.executed_margins is not None
        executed = least(j.executed_margins)
        # A projection is on the boundary: a rounding error below it is not a broken rule.
        executed = np.where(j.status == PROJECTED, np.maximum(executed, 0.0), executed)
        if self.stopped:
            executed[list(self.stopped)] = np.nan
        return executed

    @property
    def exact(self) -> np.ndarray:
        """Whether each is proven to be the nearest allowed action [B]."""
        return self.judgement.exact

    @property
    def safe_set(self) -> SafeSet | None:
        """The batch of safe sets."""
        return self.judgement.safe_set

    def __len__(self) -> int:
        return len(self.judgement.status)

    def __iter__(self) -> Iterator[Verdict]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Verdict:
        j = self.judgement
        suggestion = None if i in self.stopped else own(j.action[i])
        names, proposed = (*self.names, ACTION_SPACE), own(self.proposed[i])
        return Verdict(
            proposed=proposed,
            action=suggestion if self.enforced else proposed,
            status=STATUSES[j.status[i]],
            distance=float(j.distance[i]),
            margins=MappingProxyType({n: float(m) for n, m in zip(self.names, j.margins[:, i], strict=True)}),
            binding=tuple(n for n, binds in zip(names, j.binding[:, i], strict=True) if binds),
            safe_set=None if j.safe_set is None else j.safe_set[i],
            exact=bool(j.exact[i]),
            reason=self.reasons[i],
            suggestion=suggestion,
            enforced=self.enforced,
            executed_margin=float(self.executed_margin[i]),
            ungraded=self.ungraded,
        )


def own(action: Action) -> Action:
    """A write-protected copy: a verdict does not change after it is given."""
    if isinstance(action, np.ndarray):
        action = action.copy()
        action.flags.writeable = False
    return action
