"""Policy, Q-ensemble, guarded backup, SAC. Never imports the Guardian: they meet in the loop."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlpd_gx.config import LearnerConfig

if TYPE_CHECKING:
    from rlpd_gx.learner.adam import Diverged
    from rlpd_gx.learner.q_learner import QLearner, trainable_devices
    from rlpd_gx.learner.sac_continuous import SacContinuous
    from rlpd_gx.learner.sac_discrete import SacDiscrete
    from rlpd_gx.learner.sac_factored import SacFactored
    from rlpd_gx.learner.soft_discrete import SoftDiscrete
    from rlpd_gx.learner.supported import SupportedDiscrete

_HOME = {  # loaded on first use: settings can be listed without torch
    "Diverged": "adam",
    "QLearner": "q_learner",
    "SacContinuous": "sac_continuous",
    "SacDiscrete": "sac_discrete",
    "SacFactored": "sac_factored",
    "SoftDiscrete": "soft_discrete",
    "SupportedDiscrete": "supported",
    "trainable_devices": "q_learner",
}

__all__ = [
    "Diverged",
    "LearnerConfig",
    "QLearner",
    "SacContinuous",
    "SacDiscrete",
    "SacFactored",
    "SoftDiscrete",
    "SupportedDiscrete",
    "trainable_devices",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
