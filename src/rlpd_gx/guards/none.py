"""No guard: proposals run as they are, and what the rules would have blocked is counted."""

from rlpd_gx.guards.base import Guard

GUARD = Guard("none", mode="monitor", settings={"backup": "none", "execution": "project"})
