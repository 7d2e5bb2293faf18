"""A policy that proposes uniformly random actions in place of a Learner's."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlpd_gx import trees
from rlpd_gx.envs.actions import uniform_actions
from rlpd_gx.learner import QLearner
from rlpd_gx.learner.policy import CategoricalPolicy
from rlpd_gx.types import Array, Observation


class Uniform:
    """A Learner whose proposals are uniformly random; the rest is the Learner's."""

    def __init__(self, learner: QLearner, action_space: Any) -> None:
        self._learner, self._space = learner, action_space

    def act(
        self,
        observation: Observation,
        safe_set: Array | None = None,
        *,
        explore: bool = True,
        generator: torch.Generator | None = None,
    ) -> Array:
        """Uniform actions [L, ...], also where a Learner would take its most likely one.

        Where a Learner would draw from masks (`execution = resample`), they are uniform among the allowed actions.
        """
        source = generator or self._learner.generator
        chance = np.random.default_rng(int(torch.randint(2**62, (), generator=source, device=source.device)))
        policy = self._learner.policy
        if isinstance(policy, CategoricalPolicy) and (allowed := policy.allowed(safe_set)) is not None:
            return np.array([chance.choice(np.flatnonzero(row)) for row in allowed.cpu()]) + policy.start
        return uniform_actions(self._space, len(next(trees.leaves(observation))), chance)

    def explore(self, observation: Observation, safe_set: Array | None = None) -> Array:
        """The same in training."""
        return self.act(observation, safe_set)

    def probability(self, observation: Observation, action: Array, safe_set: Array) -> Array:
        """Probability [n] of each action before the guard (continuous: density per component)."""
        if isinstance(self._space, gym.spaces.Box):
            return np.full(len(action), 0.5)  # on -1 to 1
        choices = self._space.nvec if isinstance(self._space, gym.spaces.MultiDiscrete) else self._space.n
        return np.full(len(action), 1 / np.prod(choices))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)
