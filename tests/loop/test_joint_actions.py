"""Actions of several components: numbered for the Learner, guarded as the environment takes them."""

import contextlib
import signal
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import SMALL

import rlpd_gx as gx
from rlpd_gx.envs.actions import ActionView, uniform_actions
from rlpd_gx.envs.snapshots import random_state, set_random_state
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.measure import measure_run
from rlpd_gx.loop.resume import Saver, resume
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Stopped, Trainer
from rlpd_gx.trees import leaves

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


@pytest.mark.parametrize(
    ("env", "rule", "action"),
    [(Panel, low, np.array([2, 6, 3])), (switches, few, np.array([[1, 1], [1, 0]], np.int8))],
)
def test_a_policy_of_another_library_acts_as_the_environment_does(tmp_path: Path, env, rule, action) -> None:
    run = gx.train(env, rule, out=tmp_path / "run", progress=False, **SMALL | {"steps": 10})
    EXECUTED.clear()
    found = measure_run(
        run.folder, ("proposals", "dependence"), policy=lambda observation: action, episodes=2
    )
    assert found["proposals"]["pre_guard_violation_rate"] == 1
    assert found["dependence"]["forbidden_executed_rate_without_guard"] == 1
    assert sum(np.array_equal(executed, action) for executed in EXECUTED) == 20  # all steps without the guard


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


class Desk(Panel):
    """Too many joint actions to number: 13 * 2 * 40 * 8, with starts of their own, in two rows."""

    def __init__(self) -> None:
        self.action_space = gym.spaces.MultiDiscrete([[13, 2], [40, 8]], start=[[2, 0], [-3, 1]])

    def snapshot(self):
        return {"t": self.t, "random": random_state(self)}

    def restore(self, snapshot):
        self.t = snapshot["t"]
        set_random_state(self, snapshot["random"])


class Switchboard(Panel):
    """2 ** 20 joint actions."""

    def __init__(self) -> None:
        self.action_space = gym.spaces.MultiBinary(20)


@gx.mask_rule(name="lower half, where the observation says so")
def lower(observation):
    half = np.arange(40) < (20 if observation[0] > 0.5 else 40)
    return np.arange(13) != 0, np.ones(2, bool), half, np.arange(8) > 5


@gx.mask_rule(name="even switches are off")
def even(observation):
    return np.tile([True, False, True, True], 10)


def many(env) -> dict:
    return {
        "Desk": {"env": Desk, "rule": lower, "broken": lambda a: a[0, 0] == 2 or a[1, 1] < 7},
        "Switchboard": {"env": Switchboard, "rule": even, "broken": lambda a: a[::2].any()},
    }[env]


@pytest.mark.parametrize("guard", ["guardian", "replace", "random", "penalty", "classifier", "lagrangian"])
@pytest.mark.parametrize("env", ["Desk", "Switchboard"])
def test_more_than_can_be_numbered_are_trained_guarded_and_resumed(tmp_path: Path, env, guard) -> None:
    case = many(env)
    EXECUTED.clear()
    run = gx.train(
        case["env"], case["rule"], out=tmp_path / "run", progress=False, guard=guard,
        guard_options={"unsafe_event": lambda *outcome: False}, **SMALL,
    )  # fmt: skip
    broken = sum(bool(case["broken"](action)) for action in EXECUTED)
    enforced = guard in ("guardian", "replace", "random")
    assert (broken == 0) == enforced
    assert run.result["training"]["forbidden_proposals"] > 0
    if guard == "random":
        return
    if guard in ("replace", "classifier"):
        with pytest.raises(gx.GxError, match="whose corrections follow from more than the rules"):
            _ = run.policy
    else:
        learned = run.policy.act(np.zeros(2, np.float32)).action
        assert case["env"]().action_space.contains(learned)
        assert not (enforced and case["broken"](learned))
    EXECUTED.clear()
    assert run.resume(steps=80, progress=False).result["steps"] == 80
    assert not (enforced and any(case["broken"](action) for action in EXECUTED))


@pytest.mark.parametrize("execution", ["project", "resample"])
def test_an_interrupted_run_of_many_joint_actions_goes_on_bit_for_bit(tmp_path: Path, execution) -> None:
    class Interrupt:
        def step(self, trainer):
            if trainer.step == 41:
                trainer.stop_signal = signal.SIGTERM

        def row(self, kind, step, values):
            pass

    here = {"env": f"{__name__}:Desk", "rules": f"{__name__}:lower", "sampler": "tree-backup"}
    config = configure("rlpd-gx", SMALL | here | {"execution": execution}, "test")
    states = []
    for name, watchers in (("whole", ()), ("part", (Interrupt(),))):
        trainer = Trainer(Task(config), RunFolder.create(tmp_path / name, config, "test"), watchers)
        save = Saver(trainer.folder)
        trainer.begin()
        with contextlib.suppress(Stopped):
            trainer.train(save)
        assert trainer.step == (41 if watchers else 60)
        if watchers:
            trainer, save, _ = resume(tmp_path / name)
            trainer.train(save)
        states.append(trainer.learner.state())
    for one, other in zip(*map(leaves, states), strict=True):
        assert torch.equal(one, other) if torch.is_tensor(one) else one == other


@pytest.mark.filterwarnings("ignore:rule .* is not batched")
def test_recorded_joint_actions_are_learned_from(tmp_path: Path) -> None:
    space = Desk().action_space
    space.seed(0)
    np.savez(
        tmp_path / "log.npz", observations=np.random.default_rng(0).random((40, 2), np.float32),
        rewards=np.ones(40, np.float32), actions=np.stack([space.sample() for _ in range(40)]),
        terminals=np.arange(40) % 10 == 9,
    )  # fmt: skip
    run = gx.train(
        Desk, lower, tmp_path / "log.npz", out=tmp_path / "run", progress=False, **(SMALL | {"steps": 20})
    )
    assert run.result["rows"]["offline"] > 0


@pytest.mark.parametrize("sizes", [[5, 3], [10] * 6])
def test_uniform_actions_reach_every_value(sizes) -> None:
    space = gym.spaces.MultiDiscrete(sizes, start=[-2] * len(sizes))
    drawn = uniform_actions(space, 2_000, np.random.default_rng(0))
    assert all(space.contains(action) for action in drawn)
    assert (drawn.min(axis=0) == space.start).all()
    assert (drawn.max(axis=0) == space.start + space.nvec - 1).all()


def test_rules_over_joint_actions_are_refused_with_a_sentence_where_those_are_too_many(
    tmp_path: Path,
) -> None:
    with pytest.raises(gx.GxError, match="a tuple with one mask for each component, or leave components out"):
        gx.train(Switchboard, few, out=tmp_path / "run", progress=False, **SMALL)
    joint = gx.mask_rule(lambda observation: np.ones((13, 2, 40, 8), bool), name="joint")
    with pytest.raises(gx.GxError, match=r"shape \(13, 2, 40, 8\).* return a tuple with one mask for each"):
        gx.train(Desk, joint, out=tmp_path / "run", progress=False, **SMALL)
    with pytest.raises(gx.GxError, match="the Learner acts in Discrete, MultiDiscrete"):
        _ = ActionView(gym.spaces.Text(3)).learner_space
