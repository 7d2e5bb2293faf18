"""What `rlpd-gx train` says about a user's data, rules and environment."""

import re

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("default::UserWarning")  # the user's rules are not batched
TINY = ["--utd=1", "--batch-size=8", "--hidden-sizes=8,8", "--ensemble-size=2", "--learning-starts=8",
        "--evaluation-episodes=1", "--device=cpu"]  # fmt: skip
TANK = """
import gymnasium as gym, numpy as np, rlpd_gx as gx

class Tank(gym.Env):
    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def seen(self):
        return np.zeros(2, np.float32)

    def step(self, action):
        self.steps += 1
        return self.seen(), 0.5, False, self.steps >= 5, {}

anything = gx.bounds_rule(lambda state: ([-1], [1]), name="anything")

@gx.bounds_rule(name="level")
def level(state):
    if state[0] > 0.5:
        raise RuntimeError("level sensor")
    return [-1], [1]
"""


@pytest.fixture
def train(command, tmp_path, monkeypatch):
    """Run `rlpd-gx train` on an environment of the user's module, which `code` ends; (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)

    def run(env, rules, *words, code="", steps=12, out="run"):
        module = f"tank_{tmp_path.name.rpartition('_')[2]}_{len(list(tmp_path.glob('*.py')))}"
        (tmp_path / f"{module}.py").write_text(TANK + code)
        task = [f"--env={module}:{env}", f"--rules={module}:{rules}"]
        return command("train", *task, *TINY, f"--steps={steps}", f"--out={out}", *words)

    return run


@pytest.fixture
def data(tmp_path):
    """40 steps with actions between 0 and 39; the first observation of every tenth is 1."""
    steps = np.arange(40)
    np.savez(
        tmp_path / "data.npz",
        observations=np.stack([steps % 10 == 9, steps], axis=1).astype(np.float32),
        next_observations=np.stack([steps % 10 == 8, steps + 1], axis=1).astype(np.float32),
        actions=steps[:, None].astype(np.float32),
        rewards=np.ones(40, np.float32),
        terminals=steps == 39,
    )
    return tmp_path / "data.npz"


def test_the_findings_of_offline_data_are_notes(train, data):
    code, _, err = train("Tank", "anything", f"--offline={data}")
    assert code == 0, err
    assert err.count("data.npz: 'actions', row 2: outside the environment's range (38 steps in all)") == 1


def test_a_reward_that_is_none_is_one_sentence(train):
    nothing = """
class Nothing(Tank):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, None, *rest
"""
    code, _, err = train("Nothing", "anything", code=nothing)
    said = "rlpd-gx: Nothing, step 0 of an episode: the reward is None, not a number: mend the environment"
    assert (code, err.splitlines()[-1]) == (2, said)


def test_another_number_of_half_spaces_names_max_rows(train):
    obstacles = """
class Moving(Tank):
    def seen(self):
        return np.array([self.steps, 0], np.float32)

def rows(state):
    return np.zeros((2 if state[0] >= 3 else 3, 1)), np.ones(2 if state[0] >= 3 else 3)

obstacles = gx.halfspace_rule(rows, name="obstacles")
declared = gx.halfspace_rule(rows, name="declared", max_rows=3)
"""
    code, _, err = train("Moving", "obstacles", code=obstacles)
    assert code == 2
    assert "another number of half-spaces than in the first state" in err.splitlines()[-1]
    assert "declare the largest number of rows as max_rows= of the half-space rule" in err.splitlines()[-1]
    assert train("Moving", "declared", out="declared", code=obstacles)[0] == 0


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("late", r"in [1-9] of 12 training steps, rule 'late' raised RuntimeError: level sensor;"),
        ("nothing", "the rules allowed no action in any of the 12 steps"),
    ],
)
def test_rules_that_fail_or_allow_nothing_are_noted_at_the_end(train, rule, said):
    rules = """
class Moving(Tank):
    def seen(self):
        return np.array([self.steps, 0], np.float32)

@gx.bounds_rule(name="late")
def late(state):
    if state[0] >= 3:
        raise RuntimeError("level sensor")
    return [-1], [1]

nothing = gx.bounds_rule(lambda state: ([2], [3]), name="nothing")
"""
    code, _, err = train("Moving", rule, code=rules)
    assert code == 0, err
    assert re.search(rf"^note: {said}.*check the rules", err, re.M)
    code, _, err = train("Moving", "anything", out="sound", code=rules)
    assert (code, "check the rules" in err) == (0, False)


def test_a_mean_of_no_step_is_none(train):
    at_once = """
@gx.bounds_rule(name="later")
def later(state):
    called.append(1)
    if len(called) > 30:
        raise RuntimeError("level sensor")
    return [-1], [1]

called = []
"""
    code, out, err = train("Tank", "later", steps=100, code=at_once)
    assert code == 0, err
    assert re.search("^Mean return +none$", out, re.M), out


def test_drop_says_how_much_it_leaves_out(train, data):
    code, _, err = train("Tank", "level", f"--offline={data}", "--offline-safe-sets=drop")
    assert code == 0, err
    assert "note: data.npz: 8 of 40 steps left out: the safe set before or after them is unknown" in err
