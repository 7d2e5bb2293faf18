"""Environments that misbehave on purpose."""

from typing import Any

import gymnasium as gym
import numpy as np


class Plain(gym.Env):
    """Ten steps of nothing; its state cannot be saved."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, reward: float = 1.0, poisoned_after: int = 10**9) -> None:
        self.reward, self.poisoned_after, self.taken = reward, poisoned_after, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.taken += 1
        reward = 1e38 if self.taken > self.poisoned_after else self.reward
        return self._observation(), reward, self.time >= 10, False, {}

    def _observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


for name in ("Plain-v0", "Poisoned-v0"):
    gym.register(f"Odd/{name}", f"{__name__}:Plain", disable_env_checker=True)
