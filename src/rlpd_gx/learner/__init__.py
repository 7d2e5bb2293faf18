"""Networks, Q-ensemble, guarded backup, SAC. Never imports the Guardian: they meet in the loop."""

from rlpd_gx.learner.config import LearnerConfig
from rlpd_gx.learner.sac import Diverged, Sac, trainable_devices
from rlpd_gx.learner.sac_continuous import SacContinuous
from rlpd_gx.learner.sac_discrete import SacDiscrete

__all__ = ["Diverged", "LearnerConfig", "Sac", "SacContinuous", "SacDiscrete", "trainable_devices"]
