"""SAC+Shield: proposals are projected at execution; targets and actor use the raw policy."""

from rlpd_gx.guards.base import Guard

GUARD = Guard("shield", mode="enforce", settings={"backup": "none", "execution": "project"})
