"""Returns of episodes that are cut at a horizon."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rlpd_gx.metrics.subject import Found, Subject

GRID = (10, 30, 100, 300, 1_000, 3_000, 10_000)


def horizon_truncation(
    rewards: Sequence[npt.ArrayLike], horizons: Sequence[int] = GRID
) -> dict[str, list[float]]:
    """Mean return [h] of episodes (one sequence of rewards each) cut at each horizon; shorter ones count in full."""
    found = [float(np.mean([np.sum(np.asarray(r, np.float64)[:h]) for r in rewards])) for h in horizons]
    return {"horizon": [float(h) for h in horizons], "return": found}


def cut_returns(subject: Subject) -> Found:
    """Horizon truncation of the evaluation episodes."""
    return {**horizon_truncation(subject.played().rewards)}
