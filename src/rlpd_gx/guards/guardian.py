"""Guardian: proposals are projected onto the safe set, and value backups count only what would be executed."""

from rlpd_gx.guards.base import Guard

GUARD = Guard("guardian", mode="enforce", settings={"backup": "project", "execution": "project"})
