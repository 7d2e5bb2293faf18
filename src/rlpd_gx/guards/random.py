"""Random: uniformly random proposals under the same projection, without learning: what the guard alone is worth."""

from dataclasses import dataclass
from typing import cast

import gymnasium as gym

from rlpd_gx.guards import guardian
from rlpd_gx.guards._uniform import Uniform
from rlpd_gx.guards.base import Guard
from rlpd_gx.learner import QLearner


@dataclass(frozen=True)
class Random(Guard):
    """A guard whose Learner never learns."""

    def learner(self, learner: QLearner, action_space: gym.Space) -> QLearner:
        return cast(QLearner, Uniform(learner, action_space))


GUARD = Random(
    "random", mode="enforce", settings={**guardian.GUARD.settings, "online_ratio": (1.0,)}, learns=False
)
