"""Barrier functions for a drone in a fenced room and for a car behind another one, tried with random actions.

python examples/barriers.py
"""

import gymnasium as gym
import numpy as np
import torch

import rlpd_gx as gx

PERIOD = 0.02  # seconds for which an action is held
STEPS = 200  # of an episode


class Drone(gym.Env):
    """Position [2] and velocity [2]; the action is an acceleration of at most 4 m/s^2 along each axis."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = gym.spaces.Box(-4, 4, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps = np.append(self.np_random.uniform(-1, 1, 2), [0.0, 0.0]), 0
        return self.x.copy(), {}

    def step(self, action):
        self.x[:2] += PERIOD * self.x[2:] + PERIOD**2 / 2 * action
        self.x[2:] += PERIOD * action
        self.steps += 1
        outside = bool((np.abs(self.x[:2]) > 2).any())
        return self.x.copy(), -float(outside), False, self.steps >= STEPS, {"unsafe_event": outside}


def room_to_stop(x):
    """Distance to each of the four walls, less what braking at 3 m/s^2 takes: [4]."""
    place, speed = torch.cat([x[:2], -x[:2]]), torch.cat([x[2:], -x[2:]])
    return 1.9 - place - torch.relu(speed) ** 2 / (2 * 3.0)


fence = gx.cbf_rule(
    room_to_stop,
    dynamics=(lambda x: np.append(x[2:], [0.0, 0.0]), lambda x: np.vstack([np.zeros((2, 2)), np.eye(2)])),
    alpha=2.0,
    name="fence",
)


class Car(gym.Env):
    """Gap to the car ahead, own speed, speed ahead; the action is an acceleration of at most 4 m/s^2."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Box(-4, 4, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps = np.array([30.0, 15.0, 15.0]), 0
        return self.x.copy(), {}

    def step(self, action):
        gap, own, ahead = self.x
        self.x = np.array(
            [
                gap + PERIOD * (ahead - own),
                max(own + PERIOD * float(action[0]), 0.0),
                float(np.clip(ahead + PERIOD * self.np_random.uniform(-3, 3), 5, 25)),
            ]
        )
        self.steps += 1
        close = bool(self.x[0] < 1.5 * self.x[1])
        return self.x.copy(), float(self.x[1]), False, self.steps >= STEPS, {"unsafe_event": close}


headway = gx.cbf_rule(
    lambda x: x[0] - 1.6 * x[1],  # stay 1.6 seconds behind; less than 1.5 is the unsafe event
    dynamics=(lambda x: np.array([x[2] - x[1], 0.0, 0.0]), lambda x: np.array([[0.0], [1.0], [0.0]])),
    alpha=1.0,
    name="headway",
)


def unsafe_event(observation, reward, terminated, truncated, info):
    """The environments say it themselves."""
    return info["unsafe_event"]


def unsafe_steps(env, rule, mode, seed=1):
    """Steps with an unsafe event in one episode of random actions that last a second each, and corrections."""
    world = gx.GuardedEnv(env, rule, mode=mode, unsafe_event=unsafe_event)
    world.reset(seed=seed)
    generator, space = np.random.default_rng(seed), world.action_space
    unsafe, over, steps = 0, False, 0
    while not over:
        if steps % 50 == 0:
            action = generator.uniform(space.low, space.high).astype(space.dtype)
        _, _, terminated, truncated, info = world.step(action)
        unsafe, steps, over = unsafe + info["unsafe_event"], steps + 1, terminated or truncated
    return unsafe, world.audit.tally.corrections


if __name__ == "__main__":
    for name, kind, rule in (("drone", Drone, fence), ("car", Car, headway)):
        for mode in ("monitor", "enforce"):
            unsafe, corrections = unsafe_steps(kind(), rule, mode)
            what = f"{corrections} corrections" if mode == "enforce" else "no guard"
            print(f"{name}: {unsafe} of {STEPS} steps unsafe, {what}")
