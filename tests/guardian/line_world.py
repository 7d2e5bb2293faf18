"""A small environment for guards, and a rule that needs the previous action."""

import gymnasium as gym
import numpy as np

import rlpd_gx as gx


class Line(gym.Env):
    """A point that moves by its action; an episode lasts five steps."""

    observation_space = gym.spaces.Box(-10, 10, (1,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = np.zeros(1), 0
        return self.x.copy(), {}

    def step(self, action):
        self.received = np.array(action)
        action *= 100  # an environment may do what it likes with its copy
        self.x = self.x + self.received
        self.t += 1
        return self.x.copy(), float(self.x[0]), False, self.t >= 5, {}


RATE = gx.bounds_rule(
    lambda s, previous_action: (previous_action - 0.1, previous_action + 0.1),
    needs=("previous_action",),
    name="rate",
)
NOT_MARKOV = "put that action into the Learner's observation too"
