"""Rules in, verdicts out. Never imports the Learner: they meet in the loop."""

from rlpd_gx.guardian.audit import Audit
from rlpd_gx.guardian.guardian import Guardian
from rlpd_gx.guardian.verdicts import VerdictBatch
from rlpd_gx.guardian.wrapper import GuardedEnv, GuardedVectorEnv, guarded_layer

__all__ = ["Audit", "GuardedEnv", "GuardedVectorEnv", "Guardian", "VerdictBatch", "guarded_layer"]
