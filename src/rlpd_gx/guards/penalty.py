"""Penalty: each proposal that is corrected, or that the rules would correct, costs `value` in the learned reward.

Alone (`--guard penalty`) forbidden actions run and cost; with another guard (`--guard guardian+penalty`) they are
corrected and cost. Reported returns are the task's own. Offline rows whose action is forbidden cost as much.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import gymnasium as gym
import numpy as np

from rlpd_gx.guards import none
from rlpd_gx.guards.base import Guard
from rlpd_gx.learner import QLearner
from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.replay.offline import OfflineDataset, executed_margins
from rlpd_gx.types import Transition


@dataclass(frozen=True)
class Penalty(Guard):
    """A guard with a price on corrections; everything else is `base`'s."""

    base: Guard = none.GUARD

    def beside(self, base: Guard, name: str) -> Self:
        """The same penalty on top of another guard."""
        return replace(self, name=name, mode=base.mode, settings=base.settings, learns=base.learns, base=base)

    @property
    def corrects(self) -> bool:
        return self.base.corrects

    @property
    def exportable(self) -> bool:
        return self.base.exportable

    def begin(self, seed: int, *, watched: bool) -> Self:
        return replace(self, base=self.base.begin(seed, watched=watched))

    def environment(self, env: gym.Env, rules: Any, **options: Any) -> gym.Env:
        return self.base.environment(env, rules, **options)

    def learner(self, learner: QLearner, action_space: gym.Space) -> QLearner:
        return self.base.learner(learner, action_space)

    def stored(self, transition: Transition) -> Transition:
        costs = np.array([v is not None and (v.corrected or v.margin < 0) for v in transition.verdicts])
        priced = transition.reward - np.float32(self.value) * costs
        return self.base.stored(replace(transition, reward=priced))

    def offline(self, data: OfflineDataset) -> OfflineDataset:
        line = data.timeline
        priced = line.reward - np.float32(self.value) * (executed_margins(data) < 0)
        return self.base.offline(replace(data, timeline=replace(line, reward=priced)))

    def learn(self, data: Hybrid) -> dict[str, float]:
        return self.base.learn(data)

    def state(self) -> dict[str, Any]:
        return self.base.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.base.load_state(state)


GUARD = Penalty("penalty", mode="monitor", settings=none.GUARD.settings, value=1.0)
