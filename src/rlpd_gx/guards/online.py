"""Online: no guard and no offline data."""

from rlpd_gx.guards import none
from rlpd_gx.guards.base import Guard

GUARD = Guard("online", mode="monitor", settings={**none.GUARD.settings, "online_ratio": (1.0,)})
