"""Two-stage: the Guardian's learner on offline data alone for half of the run, then on online data alone."""

from rlpd_gx.guards import guardian
from rlpd_gx.guards.base import Guard

GUARD = Guard(
    "two-stage",
    mode="enforce",
    settings={**guardian.GUARD.settings, "online_ratio": (0.0, 1.0), "online_schedule": "abrupt"},
)
