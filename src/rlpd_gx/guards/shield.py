"""SAC+Shield: proposals are projected at execution; targets and actor use the raw policy."""

from rlpd_gx.guards.base import Guard

GUARD = Guard("shield", mode="enforce", learner={"backup": "none", "execution": "project"})
