"""Lagrangian: a constrained MDP. Rules correct nothing; unsafe events have a learned price.

`--guard lagrangian=0.001` allows one unsafe event in 1,000 steps (the default). The price (multiplier) of an event
rises with each event seen online and falls with each step without one, so it settles where events are as frequent as
allowed. The actor maximises value minus the price times the largest estimate among the cost critics: it is an actor
network for discrete actions too.

The cost of a step is an unsafe event; in Atari games with a dying flag, the step where the flag appears, since the
counter falls later. Where the task reports no unsafe events, it is an executed action that the rules forbid.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import gymnasium as gym
import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.guards import none
from rlpd_gx.guards.base import Guard
from rlpd_gx.learner import QLearner
from rlpd_gx.learner.costs import CostCritics
from rlpd_gx.learner.sac import Sac
from rlpd_gx.replay.offline import OfflineDataset, executed_margins
from rlpd_gx.types import Array, Transition

STEP = 0.05  # by which one event raises the price


@dataclass
class Run:
    """What changes during a run."""

    seed: int
    watched: bool
    costs: CostCritics | None = None
    envs: list[gym.Env] = field(default_factory=list)
    """Those that are trained in."""
    dying: list[bool] = field(default_factory=list)
    """Whether the dying flag was up after the last step of each."""


@dataclass(frozen=True)
class Lagrangian(Guard):
    """Prices unsafe events."""

    run: Run = field(default_factory=lambda: Run(0, True))

    def begin(self, seed: int, *, watched: bool) -> Self:
        return replace(self, run=Run(seed, watched))

    @property
    def exportable(self) -> bool:
        return True  # `environment` only remembers what it made

    def environment(self, env: gym.Env, rules: Any, **options: Any) -> gym.Env:
        guarded = super().environment(env, rules, **options)
        if options.get("audit") is not None:
            self.run.envs.append(guarded)
            self.run.dying.append(False)
        return guarded

    def learner(self, learner: QLearner, action_space: gym.Space) -> QLearner:
        if not isinstance(learner, Sac) or learner.config.actor == "clone":
            raise GxError(
                "--guard lagrangian prices the actor's actions: leave out --actor, or give --actor raw"
            )
        learner.costs = self.run.costs = CostCritics(learner, self.run.seed + 1)
        return learner

    def stored(self, transition: Transition) -> Transition:
        costs = self.run.costs
        assert costs is not None
        assert self.value is not None
        cost = self._cost(transition)
        for happened in cost[transition.executed]:
            costs.multiplier = max(costs.multiplier + STEP * (float(happened) - self.value), 0.0)
        return replace(transition, unsafe_event=cost)

    def _cost(self, transition: Transition) -> Array:
        if not self.run.watched:
            return transition.margin < 0
        cost = transition.unsafe_event.copy()
        for i, env in enumerate(self.run.envs):
            game = getattr(env.unwrapped, "game", None)
            if getattr(game, "dying", ()):
                now = bool(game.is_dying(env.unwrapped.ram()))  # type: ignore[union-attr, attr-defined]
                cost[i] = now and not self.run.dying[i]
                self.run.dying[i] = now
        return np.asarray(cost)

    def offline(self, data: OfflineDataset) -> OfflineDataset:
        if self.run.watched:
            return data
        return replace(data, timeline=replace(data.timeline, unsafe_event=executed_margins(data) < 0))

    def state(self) -> dict[str, Any]:
        assert self.run.costs is not None
        return {"costs": self.run.costs.state(), "dying": list(self.run.dying)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        assert self.run.costs is not None
        self.run.costs.load_state(state["costs"])
        self.run.dying[:] = state["dying"]


GUARD = Lagrangian(
    "lagrangian", mode="monitor", settings={**none.GUARD.settings, "actor": "raw"}, value=0.001
)
