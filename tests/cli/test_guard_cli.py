"""`rlpd-gx guard`, as a person calls it."""

import subprocess
import sys
from pathlib import Path

import pytest

import rlpd_gx as gx

PROGRAM = Path(sys.executable).parent / "rlpd-gx"
RULES = """
import gymnasium as gym, numpy as np, rlpd_gx as gx
lean = gx.mask_rule(lambda s: np.array([s[2] > -0.02, s[2] < 0.02]), name="lean")
both = [lean, gx.mask_rule(lambda s: np.array([True, s[0] < 1]), name="edge")]
@gx.mask_rule(name="unreadable")
def unreadable(observation): raise ValueError("no answer")
empty = gx.mask_rule(lambda s: np.zeros(2, bool))
left = gx.mask_rule(lambda s: np.array([True, False]))
wrong = 3
class Endless(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)
    def reset(self, seed=None, options=None): return np.zeros(1, np.float32), {}
    def step(self, action): return np.zeros(1, np.float32), 0.0, False, False, {}
def push_right(observation): return 1
def both_arguments(observation, action): return True
def breaks(observation): raise ValueError("no idea")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_rules.py").write_text(RULES)
    (tmp_path / "my_fallback.py").write_text("from my_rules import lean\nfallback = 2\n")
    return tmp_path


def guard(folder, *arguments):
    return subprocess.run([PROGRAM, "guard", *arguments], cwd=folder, capture_output=True, text=True)


def test_ones_own_rules_in_the_current_folder(folder):
    done = guard(
        folder, "--env", "CartPole-v1", "--rules", "my_rules:both", "--episodes", "3", "--audit", "a.jsonl"
    )
    assert done.returncode == 0, done.stderr
    assert "blocked by lean" in done.stdout
    audit, events = gx.Audit.read(folder / "a.jsonl")
    assert audit.tally.episodes == 3
    assert len(events) == audit.tally.corrections > 0


def test_a_policy_of_ones_own_and_the_comparison(folder):
    done = guard(
        folder,
        "--env",
        "CartPole-v1",
        "--rules",
        "my_rules:lean",
        "--policy",
        "my_rules:push_right",
        "--compare",
    )
    assert done.returncode == 0, done.stderr
    assert "with the guard" in done.stdout
    assert "without" in done.stdout


def test_a_proposal_that_no_rule_could_judge_is_not_compared_as_forbidden(folder):
    done = guard(
        folder, "--env", "CartPole-v1", "--rules", "my_rules:unreadable", "--compare", "--episodes", "1"
    )
    (without,) = (line for line in done.stdout.splitlines() if "without" in line)
    assert "unknown" in without


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("unreadable", "gave no usable answer in any step: rule 'unreadable' raised ValueError: no answer"),
        ("empty", "allowed no action in any of"),
    ],
)
def test_rules_that_never_let_anything_run_are_an_error(folder, rules, said):
    done = guard(folder, "--env", "CartPole-v1", "--rules", f"my_rules:{rules}", "--episodes", "1")
    assert done.returncode == 2
    assert said in done.stderr
    assert "proposals" in done.stdout  # the table all the same


def test_an_episode_that_never_ends_is_an_error(folder):
    done = guard(folder, "--env", "my_rules:Endless", "--rules", "my_rules:left", "--episodes", "1")
    assert done.returncode == 2
    assert "has not ended after 100,000 steps; give --max-steps" in done.stderr


def test_a_zip_of_stable_baselines3(folder):
    import stable_baselines3 as sb3

    sb3.DQN("MlpPolicy", "CartPole-v1", device="cpu").save(folder / "agent.zip")
    for policy in ("agent.zip", "dqn:agent.zip"):
        done = guard(folder, "--env", "CartPole-v1", "--rules", "my_rules:lean", "--policy", policy, "--monitor",
                     "--episodes", "2")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "what would have been blocked" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--env", "Nowhere-v0", "--rules", "my_rules:lean"), "--env Nowhere-v0"),
        (("--env", "CartPole-v1", "--rules", "my_rules"), "takes module:name"),
        (("--env", "CartPole-v1", "--rules", "nowhere:lean"), "there is no module 'nowhere'"),
        (("--env", "CartPole-v1", "--rules", "my_rules:nothing"), "has no 'nothing'; it has"),
        (("--env", "CartPole-v1", "--rules", "my_rules:wrong"), "is not a rule"),
        (
            ("--env", "CartPole-v1", "--rules", "my_rules:push_right"),
            "returned 1, which is no rule; if it is a rule itself, decorate it, for example with @gx.rule",
        ),
        (
            ("--env", "CartPole-v1", "--rules", "my_rules:both_arguments"),
            "raised TypeError: both_arguments() missing 1 required positional argument: 'action'; if it is a rule "
            "itself, decorate it",
        ),
        (
            ("--env", "CartPole-v1", "--rules", "my_fallback:lean"),
            "the fallback is 2, which is outside Discrete(2); give such an action",
        ),
        (("--env", "Pendulum-v1", "--rules", "my_rules:lean"), "is for discrete actions"),
        (
            ("--env", "CartPole-v1", "--rules", "my_rules:lean", "--policy", "gone.zip"),
            "there is no file gone.zip",
        ),
        (
            ("--env", "CartPole-v1", "--rules", "my_rules:lean", "--policy", "my_rules:breaks"),
            "ValueError: no idea",
        ),
        (
            ("--env", "CartPole-v1", "--rules", "my_rules:lean", "--policy", "my_rules:wrong"),
            "must be a function",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(folder, arguments, said):
    done = guard(folder, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_missing_extra_is_a_sentence(folder):
    (folder / "mujoco.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'mujoco'\", name='mujoco')"
    )
    done = subprocess.run(
        [PROGRAM, "guard", "--env", "Hopper-v5", "--rules", "my_rules:lean"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(folder)},
    )
    assert done.returncode == 2
    assert "pip install 'rlpd-gx[mujoco]'" in done.stderr
