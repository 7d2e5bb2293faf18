"""Actions as Learner and replay buffer see them: joint actions of several components are numbered if they are few."""

import math
from dataclasses import dataclass
from functools import cached_property

import gymnasium as gym
import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.safe_sets.mask import JOINT_LIMIT
from rlpd_gx.types import Action, Array


@dataclass(frozen=True)
class ActionView:
    """Between an environment's action space and the space that the Learner chooses from.

    Discrete and Box are the same on both sides. The joint actions of MultiDiscrete and MultiBinary are the numbers of
    a Discrete space, in the order of the Guardian's masks; where they are too many for that, the entries of a
    MultiDiscrete space [components], counted from zero.
    """

    space: gym.Space
    """The environment's."""

    @cached_property
    def learner_space(self) -> gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.Box:
        """What the Learner chooses from."""
        if isinstance(self.space, gym.spaces.Discrete | gym.spaces.Box):
            return self.space
        if self._sizes is None:
            raise GxError(
                f"the Learner acts in Discrete, MultiDiscrete, MultiBinary and Box spaces, not {self.space}"
            )
        if np.prod(self._sizes, dtype=np.float64) > JOINT_LIMIT:
            return gym.spaces.MultiDiscrete(list(self._sizes))
        return gym.spaces.Discrete(math.prod(self._sizes))

    @property
    def discrete(self) -> bool:
        """Whether the Learner chooses among numbered actions."""
        return isinstance(self.learner_space, gym.spaces.Discrete)

    def executed(self, chosen: Array) -> Action:
        """What the environment takes for a choice of the Learner, or for an array of them."""
        if self._sizes is None:
            return chosen
        digits = np.asarray(chosen)
        if self.discrete:
            digits = np.stack(np.unravel_index(digits, self._sizes), axis=-1)
        digits = digits.reshape(*digits.shape[:-1], *(self.space.shape or ()))
        return (digits + self._start).astype(self.space.dtype)

    def chosen(self, action: Action) -> Array:
        """The inverse of `executed`; what is no action becomes the first one."""
        if self._sizes is None:
            return action
        values = np.asarray(action) - self._start
        digits = values.reshape(*values.shape[: values.ndim - len(self.space.shape or ())], len(self._sizes))
        known = ((digits >= 0) & (digits < np.array(self._sizes))).all(axis=-1, keepdims=True)
        digits = np.where(known, digits, 0).astype(np.int64)
        if not self.discrete:
            return digits
        return np.asarray(np.ravel_multi_index(tuple(np.moveaxis(digits, -1, 0)), self._sizes))

    @cached_property
    def _sizes(self) -> tuple[int, ...] | None:
        """The number of values of each component; None where the space is not made of components."""
        if isinstance(self.space, gym.spaces.MultiDiscrete):
            return tuple(self.space.nvec.ravel().tolist())
        return (
            (2,) * int(np.prod(self.space.shape)) if isinstance(self.space, gym.spaces.MultiBinary) else None
        )

    @property
    def _start(self) -> Array:
        return np.asarray(getattr(self.space, "start", 0))


def uniform_actions(space: gym.Space, count: int, generator: np.random.Generator) -> Array:
    """Uniform actions [count, ...] of a Discrete, MultiDiscrete or bounded Box space."""
    if isinstance(space, gym.spaces.Discrete):
        return generator.integers(space.n, size=count) + space.start
    if isinstance(space, gym.spaces.MultiDiscrete):
        return generator.integers(space.nvec, size=(count, *space.shape)) + space.start
    assert isinstance(space, gym.spaces.Box)
    return generator.uniform(space.low, space.high, (count, *space.shape)).astype(space.dtype)
