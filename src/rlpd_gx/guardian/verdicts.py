"""Verdicts on a batch of proposals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlpd_gx.guardian.judgement import ACTION_SPACE, STATUSES, Judgement
from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.types import Status, Verdict


@dataclass(frozen=True)
class VerdictBatch:
    """Verdicts on a batch. `action` [B, ...] is what to execute; index it for the single verdicts."""

    proposed: np.ndarray
    judgement: Judgement
    names: tuple[str, ...]
    reasons: Sequence[str]
    stopped: frozenset[int]
    mode: str

    @property
    def action(self) -> np.ndarray:
        """What to execute [B, ...]."""
        return self.proposed if self.mode == "monitor" else self.judgement.action

    @property
    def intervened(self) -> np.ndarray:
        """Where the rules ask for another action than the proposed one [B]."""
        return self.judgement.status != 0

    @property
    def status(self) -> list[Status]:
        """The status of each."""
        return [STATUSES[i] for i in self.judgement.status]

    @property
    def distance(self) -> np.ndarray:
        """How far each proposal was moved [B]."""
        return self.judgement.distance

    @property
    def margins(self) -> dict[str, np.ndarray]:
        """Margin of each rule at the proposed actions, [B] each."""
        return dict(zip(self.names, self.judgement.margins, strict=True))

    @property
    def safe_set(self) -> SafeSet | None:
        """The batch of safe sets."""
        return self.judgement.safe_set

    def __len__(self) -> int:
        return len(self.judgement.status)

    def __getitem__(self, i: int) -> Verdict:
        j = self.judgement
        suggestion = None if i in self.stopped else j.action[i]
        names = (*self.names, ACTION_SPACE)
        return Verdict(
            proposed=self.proposed[i],
            action=self.proposed[i] if self.mode == "monitor" else suggestion,
            status=STATUSES[j.status[i]],
            distance=float(j.distance[i]),
            margins={n: float(m) for n, m in zip(self.names, j.margins[:, i], strict=True)},
            binding=tuple(n for n, binds in zip(names, j.binding[:, i], strict=True) if binds),
            safe_set=None if j.safe_set is None else j.safe_set[i],
            exact=bool(j.exact[i]),
            reason=self.reasons[i],
            suggestion=suggestion,
        )
