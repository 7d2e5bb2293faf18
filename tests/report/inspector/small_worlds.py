"""Environments and rules of a few lines, in which everything is known."""

import gymnasium as gym
import numpy as np

from rlpd_gx.rules import halfspace_rule, mask_rule


class Walk(gym.Env):
    """A walk on a line: action 0 stays, 1 and 2 move; drawn as one bright column."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    action_meanings = ("STAY", "LEFT", "RIGHT")

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(-20, 20, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self.place, self.time = 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = int(self.np_random.integers(-3, 4)), 0
        return self._seen(), {}

    def step(self, action):
        self.place += (0, -1, 1)[int(action)]
        self.time += 1
        return self._seen(), float(self.place), abs(self.place) > 9, self.time >= 25, {}

    def render(self):
        frame = np.zeros((12, 41, 3), np.uint8)
        frame[:, np.clip(self.place + 20, 0, 40)] = 255
        return frame

    def snapshot(self):
        return {"place": self.place, "time": self.time}

    def restore(self, saved):
        self.place, self.time = saved["place"], saved["time"]

    def _seen(self):
        return np.array([self.place, self.time], np.float32)


class Unsteady(Walk):
    """The same, with chance that no seed controls."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int.from_bytes(np.random.default_rng().bytes(1), "big") % 9 - 4
        return self._seen(), {}


class Plain(Walk):
    """The same, without saved states or pictures."""

    metadata = {"render_modes": []}  # noqa: RUF012
    snapshot = restore = None

    def __init__(self):
        super().__init__()

    def render(self):
        return None


class Pair(Walk):
    """The same with two choices at once: where to, and how often."""

    action_meanings = ()

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.action_space = gym.spaces.MultiDiscrete([3, 2])

    def step(self, action):
        return super().step(action[0] if action[1] else 0)


class Push(gym.Env):
    """Two forces; nothing changes."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.time = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(1, np.float32), float(np.sum(action)), False, self.time >= 20, {}

    def render(self):
        return np.full((16, 16, 3), 8 * self.time % 256, np.uint8)

    def snapshot(self):
        return {"time": self.time}

    def restore(self, saved):
        self.time = saved["time"]


@mask_rule(name="edge <b>&amp;</b>")
def edge(state):
    """Not beyond 2 on either side; the name is hostile on purpose."""
    return np.array([True, state[0] > -2, state[0] < 2])


@halfspace_rule(name="sum")
def gentle(state):
    """a_1 + a_2 <= 0.5."""
    return np.array([[1.0, 1.0]]), np.array([0.5])


def unsafe_event(observation, reward, terminated, truncated, info):
    return bool(abs(observation[0]) >= 3)
