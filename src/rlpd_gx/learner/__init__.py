"""Policy, Q-ensemble, guarded backup, SAC. Never imports the Guardian: they meet in the loop."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlpd_gx.config import LearnerConfig

if TYPE_CHECKING:
    from rlpd_gx.learner.protocol import Learner
    from rlpd_gx.learner.sac import Diverged, Sac, trainable_devices
    from rlpd_gx.learner.sac_continuous import SacContinuous
    from rlpd_gx.learner.sac_discrete import SacDiscrete

_HOME = {  # loaded on first use: settings can be listed without torch
    "Diverged": "sac",
    "Learner": "protocol",
    "Sac": "sac",
    "SacContinuous": "sac_continuous",
    "SacDiscrete": "sac_discrete",
    "trainable_devices": "sac",
}

__all__ = ["Diverged", "Learner", "LearnerConfig", "Sac", "SacContinuous", "SacDiscrete", "trainable_devices"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
