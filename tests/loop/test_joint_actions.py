"""Actions of several components: numbered for the Learner, guarded as the environment takes them."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import SMALL

import rlpd_gx as gx
from rlpd_gx.envs.actions import ActionView

EXECUTED: list[np.ndarray] = []
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


class Panel(gym.Env):
    """Dials and switches; the reward is theirs, and every action that reaches it is written down."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)

    def __init__(self, switches: bool = False) -> None:
        self.action_space = (
            gym.spaces.MultiBinary((2, 2))
            if switches
            else gym.spaces.MultiDiscrete([3, 2, 4], start=[0, 5, 1])
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.random(2).astype(np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        EXECUTED.append(action)
        self.t += 1
        return self.np_random.random(2).astype(np.float32), float(action.ravel()[0]), False, self.t >= 10, {}


def switches():
    return Panel(switches=True)


@gx.mask_rule(name="first dial below 2")
def low(observation):
    return np.array([True, True, False]), np.ones(2, bool), np.ones(4, bool)


@gx.rule(name="two switches at most")
def few(observation, action):
    return bool(action.sum() <= 2)


@given(SIZES, SIZES.map(len), st.booleans())
def test_numbers_and_actions_are_the_same_thing(sizes, start, binary):
    space = (
        gym.spaces.MultiBinary(len(sizes))
        if binary
        else gym.spaces.MultiDiscrete(sizes, start=[start] * len(sizes))
    )
    view = ActionView(space)
    every = np.arange(view.learner_space.n)
    actions = view.executed(every)
    assert len({tuple(action) for action in actions}) == len(every)
    assert all(space.contains(action) for action in actions)
    np.testing.assert_array_equal(view.chosen(actions), every)
    assert view.chosen(actions[-1]) == every[-1]
    assert view.chosen(actions[0] - 100) == 0  # unused rows of a dataset


def test_a_mask_lists_joint_actions_in_the_same_order() -> None:
    env = gx.GuardedEnv(Panel(), low)
    env.reset(seed=0)
    actions = ActionView(env.action_space).executed(np.arange(24))
    np.testing.assert_array_equal(env.safe_set().allowed, actions[:, 0] < 2)


@pytest.mark.parametrize(
    ("env", "rule", "broken"), [(Panel, low, lambda a: a[0] >= 2), (switches, few, lambda a: a.sum() > 2)]
)
def test_they_are_trained_guarded_and_resumed(tmp_path: Path, env, rule, broken) -> None:
    EXECUTED.clear()
    run = gx.train(env, rule, out=tmp_path / "run", progress=False, **SMALL)
    assert len(EXECUTED) >= 60
    assert not any(broken(action) for action in EXECUTED)
    assert run.result["training"]["corrections"] > 0
    action = run.policy.act(np.zeros(2, np.float32)).action
    assert env().action_space.contains(action)
    assert run.resume(steps=80, progress=False).result["steps"] == 80
    assert not any(broken(action) for action in EXECUTED)


def test_recorded_actions_are_numbered_too(tmp_path: Path) -> None:
    space = Panel().action_space
    space.seed(0)
    np.savez(
        tmp_path / "log.npz", observations=np.zeros((40, 2), np.float32), rewards=np.ones(40, np.float32),
        actions=np.stack([space.sample() for _ in range(40)]), terminals=np.arange(40) % 10 == 9,
    )  # fmt: skip
    run = gx.train(
        Panel, None, tmp_path / "log.npz", out=tmp_path / "run", progress=False, **(SMALL | {"steps": 20})
    )
    assert run.result["rows"]["offline"] > 0


def test_too_many_joint_actions_are_refused_with_a_sentence() -> None:
    with pytest.raises(
        gx.GxError, match=r"has 1e\+06 joint actions, and the Learner chooses among at most 4,096"
    ):
        _ = ActionView(gym.spaces.MultiDiscrete([10] * 6)).learner_space
    with pytest.raises(gx.GxError, match="the Learner acts in Discrete, MultiDiscrete"):
        _ = ActionView(gym.spaces.Text(3)).learner_space
