"""What fails in a user's own code is shown in its lines, and named in a last sentence; what is ours is said to be."""

import subprocess
import sys

import pytest
from users_folder import fill

from rlpd_gx import trees
from rlpd_gx.cli.failures import told

OWN = """
import gymnasium as gym
from drone import Drone

class Stuck(Drone):
    def step(self, action):
        if self.steps == 7:
            raise RuntimeError("valve stuck")
        return super().step(action)

class Old(Drone):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info

class Mute(Drone):
    def step(self, action):
        return (*super().step(action)[:4], None)

class Blind(Drone):
    observation_space = gym.spaces.Dict(a=Drone.observation_space, b=gym.spaces.Discrete(3))

    def reset(self, *, seed=None, options=None):
        return {"a": super().reset(seed=seed)[0]}, {}

class Seedless(Drone):
    def reset(self):
        return super().reset()

class Bare(Drone):
    def reset(self, *, seed=None, options=None):
        return (*super().reset(seed=seed), 1)
"""
COMMANDS = {
    "guard": ["guard", "--rules=my_rules:power", "--episodes=2"],
    "train": ["train", "--rules=my_rules:power", "--steps=20", "--learning-starts=8", "--utd=0.25"],
    "collect": ["collect", "--episodes=2", "--out=data"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("user")
    fill(folder)
    (folder / "own.py").write_text(OWN)
    return folder


def said(folder, *words):
    ended = subprocess.run(
        [sys.executable, "-m", "rlpd_gx", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    return ended.stderr.strip().splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_an_environment_that_raises_is_shown_where_it_does(command, folder):
    lines = said(folder, *COMMANDS[command], "--env=own:Stuck")
    assert lines[-1] == ("rlpd-gx: your own code raised RuntimeError: valve stuck (own.py, line 8)")
    assert 'raise RuntimeError("valve stuck")' in lines[-2]
    assert not any("site-packages" in line for line in lines)


def test_an_environment_of_the_old_kind_is_told_what_to_return(folder):
    last = said(folder, *COMMANDS["guard"], "--env=own:Old")[-1]
    assert last == (
        "rlpd-gx: `step` must return observation, reward, terminated, truncated and info: mend the environment"
    )
    last = said(folder, *COMMANDS["guard"], "--env=own:Bare")[-1]
    assert last == "rlpd-gx: `reset` must return observation and info: mend the environment"
    last = said(folder, *COMMANDS["guard"], "--env=own:Mute")[-1]
    assert last == (
        "rlpd-gx: The `info` returned by `step()` must be a python dictionary, actual type: <class 'NoneType'>; `step` "
        "must return observation, reward, terminated, truncated and info: mend the environment"
    )
    last = said(folder, *COMMANDS["guard"], "--env=own:Blind")[-1]
    assert last.endswith("obs keys: ['a'], space keys: ['a', 'b']: mend the environment")
    last = said(folder, *COMMANDS["collect"], "--env=own:Seedless")[-1]
    assert last == (
        "rlpd-gx: Seedless.reset takes no seed, and must be reset(self, *, seed=None, options=None): mend the "
        "environment"
    )


def test_a_defect_of_ours_is_said_to_be_one():
    with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever it is
        trees.stack([])
    error = caught.value
    lines = told(
        error.with_traceback(error.__traceback__.tb_next)
    ).splitlines()  # without the line of this test
    assert "trees.py" in lines[0]
    assert lines[-1] == "rlpd-gx: this should not happen; please report the lines above with your command"
