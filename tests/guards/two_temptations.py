"""A constrained MDP with a known solution, for guards that learn from unsafe events."""

from typing import Any

import gymnasium as gym
import numpy as np

from rlpd_gx.rules import bounds_rule, mask_rule

REWARD = np.array([[0.0, 1.0], [0.0, 0.4]])  # of state and action; action 1 is an unsafe event in both


class TwoTemptations(gym.Env):
    """Two steps: at the first the unsafe action pays 1, at the second 0.4; the safe ones pay nothing."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, continuous: bool = False, length: int = 2, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.action_space = (
            gym.spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else gym.spaces.Discrete(2)
        )
        self.at, self.length = 0, length

    def _seen(self) -> np.ndarray:
        return np.array([2.0 * min(self.at, 1) - 1.0], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        risky = int(np.ravel(action)[0] > 0)
        reward = float(REWARD[self.at, risky])
        self.at += 1
        return self._seen(), reward, self.at == self.length, False, {"risky": bool(risky)}

    def render(self) -> Any:
        return np.full((16, 16, 3), 60 * self.at, np.uint8)

    def snapshot(self) -> dict[str, Any]:
        return {"at": self.at}

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.at = snapshot["at"]


rule = mask_rule(lambda state: np.array([True, False]), name="no temptation")
bound = bounds_rule(lambda state: ([-1.0], [0.0]), name="no temptation")


def unsafe_event(
    observation: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]
) -> bool:
    return info["risky"]


TASK: dict[str, Any] = {
    "env": "two_temptations:TwoTemptations", "rules": "two_temptations:rule", "hidden_sizes": (32,), "batch_size": 32,
    "learning_starts": 50, "utd": 0.5, "ensemble_size": 2, "evaluation_episodes": 1, "evaluate_every": 0,
    "sampler": "uniform", "learning_rate": 1e-2, "tau": 0.1, "temperature": 0.02, "target_entropy": "fixed",
    "device": "cpu", "log_every": 50, "checkpoint_every": 10_000,
}  # fmt: skip
