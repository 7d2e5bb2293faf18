"""A policy that proposes uniformly random actions in place of a Learner's."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlpd_gx import trees
from rlpd_gx.envs.actions import uniform_actions
from rlpd_gx.learner import QLearner
from rlpd_gx.types import Array, Observation


class Uniform:
    """A Learner whose proposals are uniformly random; the rest is the Learner's."""

    def __init__(self, learner: QLearner, action_space: gym.Space) -> None:
        self._learner, self._space = learner, action_space

    def act(
        self,
        observation: Observation,
        safe_set: Array | None = None,
        *,
        explore: bool = True,
        generator: torch.Generator | None = None,
    ) -> Array:
        """Uniform actions [L, ...], also where a Learner would take its most likely one."""
        source = generator or self._learner.generator
        seed = int(torch.randint(2**62, (), generator=source, device=source.device))
        count = len(next(trees.leaves(observation)))
        return uniform_actions(self._space, count, np.random.default_rng(seed))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)
