"""A policy that proposes uniformly random actions in place of a Learner's."""

from typing import Any

import gymnasium as gym
import torch

from rlpd_gx import trees
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
        count = len(next(trees.leaves(observation)))
        space, source = self._space, generator or self._learner.generator
        if isinstance(space, gym.spaces.Discrete):
            drawn = torch.randint(int(space.n), (count,), generator=source, device=source.device)
            return drawn.cpu().numpy() + space.start
        assert isinstance(space, gym.spaces.Box)
        share = torch.rand((count, *space.shape), generator=source, device=source.device).cpu().numpy()
        return (space.low + share * (space.high - space.low)).astype(space.dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)
