"""A snapshot taken at any moment goes on bit for bit in a new environment of a fresh process."""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from snapshot_process import STEPS, make, read, roll, write

from rlpd_gx.envs import snapshots
from rlpd_gx.envs.probes import PROBES
from rlpd_gx.errors import GxError
from rlpd_gx.trees import NotPlain, packed, unpacked

MUJOCO = ["Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Ant-v5", "Reacher-v5", "Pusher-v5", "Humanoid-v5"]
ADROIT = ["AdroitHandDoor-v1", "AdroitHandPen-v1", "AdroitHandHammer-v1", "AdroitHandRelocate-v1"]
CLASSIC = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]
PROBE = [f"Probe/{probe.__name__}{kind}-v0" for probe in PROBES for kind in ("Discrete", "Continuous")]


def test_snapshots_go_on_bit_for_bit_in_a_fresh_process(tmp_path):
    moments = np.random.default_rng(0)
    expected = {}
    for env_id in MUJOCO + ADROIT + CLASSIC + PROBE:
        for moment in (0, int(moments.integers(1, 100))):
            env = make(env_id)
            env.reset(seed=moment)
            roll(env, 100, moment)
            name = f"{env_id.replace('/', '_')}@{moment}"
            assert snapshots.why_not(env) == ""
            write(tmp_path / name, snapshots.snapshot(env))
            expected[name] = roll(env, 1, STEPS)
    program = Path(__file__).with_name("snapshot_process.py")
    subprocess.run([sys.executable, program, tmp_path], check=True, timeout=300)
    for name, answers in expected.items():
        with np.load(tmp_path / f"{name}.answers.npz") as found:
            for column, values in answers.items():
                assert found[column].tobytes() == values.tobytes(), f"{name}: {column}"
        assert (answers["terminated"] | answers["truncated"]).any(), f"{name}: no episode ended"


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Ant-v5", "CartPole-v1"])
def test_a_snapshot_is_not_touched_by_what_comes_after_it(env_id):
    env = make(env_id)
    env.reset(seed=3)
    taken = snapshots.snapshot(env)
    first = roll(env, 5, 40)
    for _ in range(2):  # restoring does not give the environment the snapshot's own arrays
        snapshots.restore(env, taken)
        again = roll(env, 5, 40)
        assert all(again[name].tobytes() == column.tobytes() for name, column in first.items())


def test_leaving_out_derived_arrays_would_be_noticed():
    """The check can fail: Ant reads the position of its torso before it steps."""
    env, other = make("Ant-v5"), make("Ant-v5")
    env.reset(seed=3)
    roll(env, 4, 7)
    taken = snapshots.snapshot(env)
    (simulator,) = (layer for name, layer in taken.items() if name.endswith("AntEnv"))
    simulator["data"]["xpos"] = np.zeros_like(simulator["data"]["xpos"])
    snapshots.restore(other, taken)
    assert roll(env, 5, 1)["reward"] != roll(other, 5, 1)["reward"]


class Counting(gym.Wrapper):
    """A wrapper that answers for itself."""

    count = 0

    def step(self, action):
        self.count += 1
        return self.env.step(action)

    def snapshot(self):
        return {"count": self.count}

    def restore(self, taken):
        self.count = taken["count"]


class Silent(gym.Wrapper):
    """An unknown wrapper."""


def test_a_layer_may_answer_for_itself(tmp_path):
    env = Counting(make("CartPole-v1"))
    env.reset(seed=0)
    roll(env, 0, 12)
    write(tmp_path / "cart", snapshots.snapshot(env))
    other = Counting(make("CartPole-v1"))
    snapshots.restore(other, read(tmp_path / "cart"))
    assert other.count == 12
    assert roll(env, 1, 30)["observation"].tobytes() == roll(other, 1, 30)["observation"].tobytes()


class Drifting(gym.Env):
    """Its own snapshot leaves out the generator that its next steps draw from."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (), np.float64)
    action_space = gym.spaces.Discrete(2)
    at = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.float64(self.at), {}

    def step(self, action):
        self.at += self.np_random.normal()
        return np.float64(self.at), 0.0, False, False, {}

    def snapshot(self):
        return {"at": self.at}

    def restore(self, taken):
        self.at = taken["at"]


def test_the_generator_is_kept_beside_an_environments_own_snapshot(tmp_path):
    env = gym.wrappers.TimeLimit(Drifting(), 100)
    env.reset(seed=3)
    env.step(0)
    write(tmp_path / "drifting", snapshots.snapshot(env))
    expected = [float(env.step(0)[0]) for _ in range(5)]

    def goes_on(taken):
        other = gym.wrappers.TimeLimit(Drifting(), 100)
        snapshots.restore(other, taken)
        return [float(other.step(0)[0]) for _ in range(5)]

    taken = read(tmp_path / "drifting")
    assert goes_on(taken) == expected
    del taken["np_random"]  # as checkpoints had it before: it loads, and goes on with other numbers
    assert goes_on(taken) != expected


def test_an_unknown_layer_is_named():
    env = Silent(make("CartPole-v1"))
    assert snapshots.snapshot(env) is None
    assert snapshots.why_not(env).startswith("Silent has no snapshot")
    cart = make("CartPole-v1")
    cart.unwrapped.memory = {1, 2}
    assert snapshots.snapshot(cart) is None
    assert snapshots.why_not(cart).startswith("CartPoleEnv.memory is a set, which has no snapshot")
    cart = make("CartPole-v1")
    cart.unwrapped.np_random = np.random.Generator(np.random.MT19937(0))
    assert snapshots.why_not(cart) == "CartPoleEnv draws from a MT19937; only PCG64 is known"


def test_another_stack_is_refused():
    taken = snapshots.snapshot(make("CartPole-v1"))
    with pytest.raises(GxError, match=r"0 TimeLimit, .* but this environment is 0 Silent, 1 TimeLimit"):
        snapshots.restore(Silent(make("CartPole-v1")), taken)
    with pytest.raises(GxError, match="make it with the same wrappers"):
        snapshots.restore(make("Pendulum-v1"), taken)


def test_plain_values_come_back_as_they_were_and_others_are_refused():
    plain = {"pose": (np.arange(3.0), np.int64(2)), "seen": [1, 2.5, None, "x"], "flag": np.array(True)}
    back = unpacked(packed(plain))
    assert type(back["pose"]) is tuple
    assert back["pose"][0].tolist() == [0, 1, 2]
    assert type(back["pose"][1]) is np.int64
    assert back["seen"] == plain["seen"]
    for other in (defaultdict(int), {1: 2}, {3}, object(), np.array([object()])):
        with pytest.raises(NotPlain):  # restored as a plain dict, a defaultdict would act differently
            packed({"field": other})
