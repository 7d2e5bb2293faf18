"""Tiny environments whose optimal Q is known in closed form: what a learner must get right before anything else.

Each comes with discrete actions and with one continuous action in [-1, 1], also as `Probe/ConstantDiscrete-v0`,
`Probe/LureContinuous-v0` and so on in Gymnasium. Observations are float32 [1].
"""

from abc import ABC, abstractmethod

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rlpd_gx.envs.snapshots import random_state, set_random_state
from rlpd_gx.rules import bounds_rule, mask_rule
from rlpd_gx.trees import Json
from rlpd_gx.types import Action, Array

LURE_LIMIT = 0.2  # the largest continuous action that the rule of the lure allows


class Probe(gym.Env[Array, Action], ABC):
    """An episode of `length` steps; it terminates there, or is truncated if `endless`.

    `q` is the exact value of acting best from the next step on, without entropy (alpha -> 0).
    """

    length = 1
    endless = False
    actions = 2
    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, continuous: bool = False) -> None:
        self.continuous = continuous
        self.action_space = (
            spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(self.actions)
        )
        self._step, self._sign = 0, 1.0

    def reset(self, *, seed: int | None = None, options: Json | None = None) -> tuple[Array, Json]:
        super().reset(seed=seed)
        self._step, self._sign = 0, float(self.np_random.choice((-1.0, 1.0)))
        return self._observe(), {}

    def step(self, action: Action) -> tuple[Array, float, bool, bool, Json]:
        reward = float(self.reward(self._observe(), action))
        self._step += 1
        ended = self._step >= self.length
        return self._observe(), reward, ended and not self.endless, ended and self.endless, {}

    @abstractmethod
    def reward(self, observation: npt.ArrayLike, action: npt.ArrayLike) -> Array:
        """[...] for observations [..., 1] and actions [...] (discrete) or [..., 1]."""

    def q(self, observation: npt.ArrayLike, action: npt.ArrayLike, gamma: float) -> Array:
        """[...] the optimal value, shapes as in `reward`."""
        return self.reward(observation, action)  # nothing comes after a single step

    def snapshot(self) -> Json:
        """Everything that the next steps and episodes depend on."""
        return {"step": self._step, "sign": self._sign, "random": random_state(self)}

    def restore(self, snapshot: Json) -> None:
        """Restore a snapshot."""
        self._step, self._sign = snapshot["step"], snapshot["sign"]
        set_random_state(self, snapshot["random"])

    def _observe(self) -> Array:
        return np.array([self._sign], np.float32)

    def _scalars(self, observation: npt.ArrayLike, action: npt.ArrayLike) -> tuple[Array, Array]:
        """Observation and action, both [...]."""
        seen, done = np.asarray(observation, np.float64)[..., 0], np.asarray(action)
        return np.broadcast_arrays(seen, done[..., 0].astype(np.float64) if self.continuous else done)  # type: ignore[return-value]


class Constant(Probe):
    """One step, reward 1 whatever is seen or done: Q = 1. Can the critic learn a constant?"""

    def reward(self, observation: npt.ArrayLike, action: npt.ArrayLike) -> Array:
        return np.ones_like(self._scalars(observation, action)[0])


class Seen(Probe):
    """One step, reward is the observation (-1 or 1): does the critic read its observation?"""

    def reward(self, observation: npt.ArrayLike, action: npt.ArrayLike) -> Array:
        return self._scalars(observation, action)[0].copy()


class Delayed(Probe):
    """Two steps, reward 1 after the second: Q = gamma, then 1. Is the value passed back and discounted?"""

    length = 2

    def reward(self, observation: npt.ArrayLike, action: npt.ArrayLike) -> Array:
        return np.where(self._scalars(observation, action)[0] > 0, 1.0, 0.0)

    def q(self, observation: npt.ArrayLike, action: npt.ArrayLike, gamma: float) -> Array:
        return np.where(self._scalars(observation, action)[0] > 0, 1.0, gamma)

    def _observe(self) -> Array:
        return np.array([min(self._step, 1)], np.float32)


class Acted(Probe):
    """One step, reward depends on the action alone (best: 1, or 0.3): does the actor follow the critic?"""

    def reward(self, observation: npt.ArrayLike, action: npt.ArrayLike) -> Array:
        _, done = self._scalars(observation, action)
        return 1.0 - (done - 0.3) ** 2 if self.continuous else np.where(done == 1, 1.0, -1.0)


class Answered(Probe):
    """One step, the best action depends on the observation (the sign's index, or half of it)."""

    def reward(self, observation: npt.ArrayLike, action: npt.ArrayLike) -> Array:
        seen, done = self._scalars(observation, action)
        if self.continuous:
            return 1.0 - (done - seen / 2) ** 2
        return np.where(done == (seen > 0), 1.0, -1.0)


class Endless(Probe):
    """Reward 1 at each step, truncated after five: Q = 1 / (1 - gamma), if truncation keeps the bootstrap."""

    length = 5
    endless = True

    def reward(self, observation: npt.ArrayLike, action: npt.ArrayLike) -> Array:
        return np.ones_like(self._scalars(observation, action)[0])

    def q(self, observation: npt.ArrayLike, action: npt.ArrayLike, gamma: float) -> Array:
        return self.reward(observation, action) / (1.0 - gamma)


class Lure(Probe):
    """Two steps; at the second the highest reward (5) is forbidden by `lure_mask` or `lure_bounds`.

    At the second step the reward is 0, 1 or 5 for the three actions (the last is forbidden), or 5a (allowed up to
    0.2): at most 1 under the rule. `q` is the guarded value: a first step is worth gamma, where an unguarded
    backup gives `5 gamma`. The value of the forbidden action itself is what executing it would yield.
    """

    length = 2
    actions = 3

    def reward(self, observation: npt.ArrayLike, action: npt.ArrayLike) -> Array:
        seen, done = self._scalars(observation, action)
        return np.where(seen > 0, 5.0 * done if self.continuous else np.array([0.0, 1.0, 5.0])[done], 0.0)

    def q(self, observation: npt.ArrayLike, action: npt.ArrayLike, gamma: float) -> Array:
        reward = self.reward(observation, action)
        return np.where(self._scalars(observation, action)[0] > 0, reward, gamma * 5.0 * LURE_LIMIT)

    def _observe(self) -> Array:
        return np.array([min(self._step, 1)], np.float32)


@mask_rule(name="no lure", batched=True)
def lure_mask(observation: Array) -> Array:
    """The last of the three actions is forbidden at the second step."""
    allowed = np.ones((len(observation), 3), np.bool_)
    allowed[:, 2] = observation[:, 0] <= 0
    return allowed


@bounds_rule(name="no lure", batched=True)
def lure_bounds(observation: Array) -> tuple[Array, Array]:
    """Actions above 0.2 are forbidden at the second step."""
    high = np.where(observation > 0, LURE_LIMIT, 1.0)
    return np.full_like(high, -1.0), high


PROBES: tuple[type[Probe], ...] = (Constant, Seen, Delayed, Acted, Answered, Endless, Lure)
for _name in (probe.__name__ for probe in PROBES):
    for _kind in ("Discrete", "Continuous"):
        gym.register(
            f"Probe/{_name}{_kind}-v0", f"{__name__}:{_name}", kwargs={"continuous": _kind == "Continuous"}
        )
