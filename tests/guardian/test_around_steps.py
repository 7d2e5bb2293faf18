"""What raises around a step, or writes into what it is given: no action may run that nobody has judged there."""

import time

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

import rlpd_gx as gx

pytestmark = pytest.mark.filterwarnings("ignore:rule .* is not batched:UserWarning")


class Clock(gym.Env):
    """Observes how many steps have passed, and reports a speed; remembers what ran in which state."""

    observation_space, action_space = gym.spaces.Discrete(99), gym.spaces.Discrete(2)

    def __init__(self):
        self.ran = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.time, {"speed": 5.0, "near": {"speed": 5.0}}

    def step(self, action):
        self.ran.append((self.time, int(action)))
        self.time += 1
        return self.time, 0.0, False, False, {"speed": 5.0, "near": {"speed": 5.0}}


@gx.mask_rule(name="action 1 at the start only")
def start_only(time):
    return np.array([True, int(time) == 0])


class Fails:
    """An `unsafe_event` that raises when it is first called."""

    def __init__(self, answer):
        self.answer, self.calls = answer, 0

    def __call__(self, observation, reward, terminated, truncated, info):
        self.calls += 1
        if self.calls == 1:
            raise KeyError("sensor")
        return self.answer


def test_whatever_raises_after_a_step_a_reset_comes_before_the_next_one():
    alone, members = Clock(), [Clock(), Clock()]
    env = gx.GuardedEnv(alone, start_only, unsafe_event=Fails(False))
    vector = gx.GuardedVectorEnv(
        SyncVectorEnv([lambda one=one: one for one in members]),
        start_only,
        unsafe_event=Fails([False, False]),
    )
    for guarded, action in ((env, 1), (vector, np.array([1, 1]))):
        guarded.reset(seed=0)
        with pytest.raises(gx.GxError, match="unsafe_event raised KeyError"):
            guarded.step(action)
        with pytest.raises(gym.error.ResetNeeded):
            guarded.step(action)
    assert [world.ran for world in (alone, *members)] == [[(0, 1)]] * 3
    with pytest.raises(gym.error.ResetNeeded, match="without reset_mask"):
        vector.reset(options={"reset_mask": np.array([True, False])})
    vector.reset(seed=0)
    vector.step(np.array([1, 1]))
    vector.step(np.array([1, 1]))
    assert [world.ran[1:] for world in members] == [[(0, 1), (1, 0)]] * 2


def test_after_a_reset_that_raised_nothing_runs_unjudged():
    members = [Clock(), Clock()]
    vector = gx.GuardedVectorEnv(SyncVectorEnv([lambda one=one: one for one in members]), start_only)
    vector.reset(seed=0)
    vector.step(np.array([1, 1]))
    with pytest.raises(ValueError, match="length"):
        vector.reset(seed=[1])
    with pytest.raises(gym.error.ResetNeeded):
        vector.step(np.array([1, 1]))
    assert [world.ran for world in members] == [[(0, 1)]] * 2


@pytest.mark.parametrize("read", [lambda infos: infos["speed"], lambda infos: infos["near"]["speed"]])
def test_a_partial_reset_keeps_what_the_other_members_have_reported(read):
    slow = gx.mask_rule(lambda speed: np.array([True, float(speed) < 1]), name="slow")
    members = [Clock(), Clock(), Clock()]
    vector = gx.GuardedVectorEnv(
        SyncVectorEnv([lambda one=one: one for one in members]),
        slow,
        state=lambda envs, o, infos: read(infos),
    )
    vector.reset(seed=0)
    vector.reset(options={"reset_mask": np.array([True, False, True])})
    vector.step(np.array([1, 1, 1]))
    assert [world.ran for world in members] == [[(0, 0)]] * 3


class Fast(Clock):
    """Its speed is always 80, in metres per second."""

    observation_space = gym.spaces.Box(-99, 99, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([80.0], np.float32), {"limits": [5.0]}

    def step(self, action):
        super().step(action)
        return np.array([80.0], np.float32), 0.0, False, False, {"limits": [5.0]}


def tens(env, observation, info):
    """Divides what it is given in place, and takes from a list."""
    observation /= 10
    return {"speed": observation, "limit": info["limits"].pop()}


@pytest.mark.parametrize("first", ["certify", "safe_set", "step"])
def test_a_state_function_that_writes_into_what_it_is_given_changes_nothing_later(first):
    slow = gx.mask_rule(lambda s: np.array([True, s["speed"][0] < s["limit"]]), name="slow")
    env = gx.GuardedEnv(Fast(), slow, state=tens)
    env.reset(seed=0)
    for _ in range(3):
        getattr(env, first)(*(() if first == "safe_set" else (1,)))
    env.step(1)
    assert {action for _, action in env.unwrapped.ran} == {0}
    vector = gx.GuardedVectorEnv(
        SyncVectorEnv([Fast]), gx.mask_rule(lambda s: np.array([True, s < 5])), state=halved
    )
    vector.reset(seed=0)
    for _ in range(5):
        vector.step(np.array([1]))
    assert {action for _, action in vector.unwrapped.envs[0].ran} == {0}


def halved(envs, observations, infos):
    """Divides in place, too: 40 is still fast, and 80 that was halved five times would not be."""
    observations /= 2
    return observations[:, 0]


@pytest.mark.parametrize("kind", [torch.Size, time.struct_time])
def test_tuples_of_all_kinds_may_be_in_info(kind):
    thing = kind(range(9))

    class Reports(Clock):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"thing": thing}

    env = gx.GuardedEnv(Reports(), start_only)
    assert env.reset(seed=0)[1]["thing"] == thing
    env.step(1)
