"""Runs and exported folders as policies of other commands, and the commands that make and film them."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from tiny_runs import tiny_run

from rlpd_gx.cli import main
from rlpd_gx.cli.policies import load_policy
from rlpd_gx.loop.resume import load_learner
from rlpd_gx.replay.offline import load

RULES = """
import numpy as np
import rlpd_gx as gx

@gx.mask_rule(name="always right")
def right(observation):
    return np.array([False, True])
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("runs") / "pole", name="sac", env="CartPole-v1")


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("RLPD_GX_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["rlpd-gx", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    return call


def test_export_and_play(command, run, tmp_path):
    code, out, _ = command("export", run, "--out", "policy")
    assert (code, sorted(p.name for p in (tmp_path / "policy").iterdir())) == (
        0,
        ["policy.json", "policy.safetensors"],
    )
    assert "load_policy('policy')" in out
    code, _, err = command("export", run, "--out", "policy")
    assert code == 2
    assert err == "rlpd-gx: policy: exists already; choose another --out\n"
    code, _, err = command("export", tmp_path, "--out", "other")
    assert code == 2
    assert "holds no run" in err
    code, out, _ = command("play", "policy", "--out", "short.mp4", "--max-steps", 3)
    assert code == 0
    assert "short.mp4: 4 frames, 0 corrections in 3 steps, returns 3.0" in out
    assert (tmp_path / "short.mp4").stat().st_size > 1000


def test_a_run_proposes_and_the_rules_of_the_command_decide(command, run, tmp_path):
    (tmp_path / "pole_rules.py").write_text(RULES)
    code, _, err = command(
        "collect", "--env", "CartPole-v1", "--policy", run, "--episodes", 3, "--out", "free"
    )
    assert code == 0, err
    data = load(tmp_path / "free").timeline
    steps = data.is_step
    learner, _ = load_learner(run)
    seen, done = data.observation[steps], data.executed_action[steps]
    assert (learner.act(seen, explore=False) == done).all()
    rules = ("--rules", "pole_rules:right")
    code, _, err = command(
        "collect", "--env", "CartPole-v1", "--policy", run, "--episodes", 3, "--out", "guarded", *rules
    )
    assert code == 0, err
    guarded = load(tmp_path / "guarded").timeline
    assert (guarded.executed_action[guarded.is_step] == 1).all()
    code, out, _ = command("guard", "--env", "CartPole-v1", "--policy", run, "--episodes", 2, *rules)
    assert code == 0
    assert "always right" in out


def test_an_exported_folder_needs_no_rules_to_propose(command, run, tmp_path):
    command("export", run, "--out", "policy")
    env = gym.make("CartPole-v1")
    for folder in (run, tmp_path / "policy"):
        act = load_policy(str(folder), env, 0)
        seen = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
        assert [act(o) for o in seen] == load_learner(run)[0].act(seen, explore=False).tolist()


def test_another_environment_is_refused(command, run):
    for other, what in (("Acrobot-v1", "observation space"), ("Pendulum-v1", "observation space")):
        code, _, err = command("collect", "--env", other, "--policy", run, "--episodes", 1, "--out", "x")
        assert code == 2
        assert f"was trained on CartPole-v1 with {what}" in err
