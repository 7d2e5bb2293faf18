"""Violations counted below the guard: known answers for single actions, and runs with and without a guard."""

import gymnasium as gym
import numpy as np
import pytest

from rlpd_gx.envs import snapshots
from rlpd_gx.envs.atari import RamRules, emulator_state
from rlpd_gx.envs.making import make
from rlpd_gx.experiments.outside import COUNTERS, Counter, counted_outside, counting
from rlpd_gx.guardian import GuardedEnv
from rlpd_gx.guardian.named import guarded


@pytest.mark.parametrize(
    ("env_id", "rules", "velocity", "action", "broken"),
    [
        ("Hopper-v5", "power", [20, 0, 0], [0.5, 0, 0], False),  # 10, at the limit
        ("Hopper-v5", "power", [20, 0, 0], [0.51, 0, 0], True),
        ("Hopper-v5", "power", [-20, 0, 0], [0.9, 0, 0], False),  # braking does not count
        ("Walker2d-v5", "power", [0, 0, 0, 30, 0, 0], [0, 0, 0, 0.4, 0, 0], True),
        ("HalfCheetah-v5", "cheetah_power", [-30, 0, 0, 0, 0, 0], [0.7, 0, 0, 0, 0, 0], True),
        ("HalfCheetah-v5", "cheetah_power", [-30, 0, 0, 0, 0, 0], [0.6, 0, 0, 0, 0, 0], False),
    ],
)
def test_power_by_hand(env_id, rules, velocity, action, broken):
    env = gym.make(env_id)
    env.reset(seed=0)
    env.unwrapped.data.qvel[-len(velocity) :] = velocity
    assert COUNTERS[f"rlpd_gx.envs.mujoco:{rules}"](env).judge(np.array(action)) == broken


def test_bent_joints_by_hand():
    env = gym.make("Hopper-v5")
    env.reset(seed=0)
    env.unwrapped.data.qvel[:] = 0
    env.unwrapped.data.qpos[-3:] = [np.pi / 2, 0, 0]
    judge = COUNTERS["rlpd_gx.envs.mujoco:power_and_bent_joints"](env).judge
    assert not judge(np.array([0.3, 1.0, 1.0]))
    assert judge(np.array([0.33, 0, 0]))


@pytest.mark.parametrize(("mode", "breaks"), [("enforce", False), ("monitor", True)])
@pytest.mark.parametrize(
    ("env_id", "rules"),
    [
        ("HalfCheetah-v5", "rlpd_gx.envs.mujoco:cheetah_power"),
        ("Atari/Freeway-objects", "rlpd_gx.envs.atari:RamRules"),
    ],
)
def test_a_guard_lets_nothing_through_and_without_one_it_is_seen(env_id, rules, mode, breaks):
    env = guarded(counting(make(env_id), rules), rules, mode=mode)
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(400):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    counter = env.env
    assert isinstance(counter, Counter)
    assert counter.executed == 400
    assert bool(counter.violations) == breaks


def test_inevitable_states_are_no_violations():
    env = counting(make("Atari/Freeway-objects"), "rlpd_gx.envs.atari:RamRules")
    guard = GuardedEnv(env, RamRules(env), state=emulator_state, mode="enforce")
    guard.action_space.seed(1)
    guard.reset(seed=1)
    inevitable = sum(guard.step(guard.action_space.sample())[4]["guardian"].inevitable for _ in range(300))
    assert env.violations == 0
    assert inevitable >= 0
    copy = env.snapshot()
    env.restore({"executed": 0, "violations": 7})
    assert env.violations == 7
    env.restore(copy)
    assert env.executed == 300


LOOK_AHEAD = "rlpd_gx.envs.atari:Lookahead"


def _played(env, steps, seed=0):
    """Random play; returns how many unsafe events there were."""
    env.action_space.seed(seed)
    env.reset(seed=seed)
    events = 0
    for _ in range(steps):
        *_, terminated, truncated, info = env.step(env.action_space.sample())
        events += info["unsafe_event"]
        if terminated or truncated:
            env.reset()
    return events


def test_look_ahead_is_judged_by_what_follows():
    """Balls that a random player of Breakout misses could have been met; under the guard none is missed."""
    free = counting(make("Atari/Breakout-ram"), LOOK_AHEAD)
    assert _played(free, 60) > 0
    assert free.violations > 0
    below = counting(make("Atari/Breakout-ram"), LOOK_AHEAD)
    assert _played(guarded(below, LOOK_AHEAD), 60) == 0
    assert below.counts() == {"executed": 60, "violations": 0}


def test_an_event_that_nothing_prevents_is_no_violation():
    """Breakout's ball is let go until no action reaches it; what runs from there on breaks no rule."""
    env = counting(make("Atari/Breakout-ram"), LOOK_AHEAD)
    _played(env, 0)
    world, states, event = env.unwrapped, [], False
    while not event:  # launch, then stay away
        states.append(world.snapshot())
        *_, info = env.step(1 if len(states) < 3 else 2)
        event = info["unsafe_event"]
    broken = env.violations
    assert broken > 0
    env.clear()
    world.restore(states[-2])
    env._forget()
    env.step(2)
    *_, info = env.step(2)
    assert info["unsafe_event"]
    assert env.counts() == {"executed": 2, "violations": 0}


def test_hindsight_goes_on_after_a_checkpoint():
    whole, resumed = (counting(make("Atari/Breakout-ram"), LOOK_AHEAD) for _ in range(2))
    resumed.reset(seed=1)
    _played(whole, 0)
    for step in range(60):
        action = whole.action_space.sample()
        whole.step(action)
        if step == 12:
            snapshots.restore(resumed, snapshots.snapshot(whole))
        elif step > 12:
            resumed.step(action)
    assert resumed.counts() == whole.counts()
    assert whole.violations > 0


def test_rules_that_nobody_judges_are_not_counted():
    env = make("Hopper-v5")
    assert counting(env, "my_rules:power") is env
    assert counted_outside([{"kind": "train", "step": 1}]) == {}


def test_counts_of_training_grow_and_those_of_evaluations_add_up():
    rows = [
        {"kind": "outside", "where": "train", "executed": 10, "violations": 0},
        {"kind": "outside", "where": "evaluation", "executed": 5, "violations": 1},
        {"kind": "outside", "where": "train", "executed": 20, "violations": 2},
        {"kind": "outside", "where": "evaluation", "executed": 6, "violations": 0},
    ]
    assert counted_outside(rows) == {
        "training": {"executed": 20, "violations": 2},
        "evaluation": {"executed": 11, "violations": 1},
    }
