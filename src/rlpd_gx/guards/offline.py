"""Offline: the Guardian's learner without online data. Steps are executed under the rules and never learned from."""

from rlpd_gx.guards import guardian
from rlpd_gx.guards.base import Guard

GUARD = Guard("offline", mode="enforce", settings={**guardian.GUARD.settings, "online_ratio": (0.0,)})
