"""No guard: proposals run as they are, and what the rules would have blocked is counted."""

from rlpd_gx.guards.base import Guard

GUARD = Guard("none", mode="monitor", learner={"backup": "none", "execution": "project"})
