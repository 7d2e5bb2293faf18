"""What a user has in the current folder, and a program that answers many command lines in one process."""

import json
from pathlib import Path

DRONE = """
import gymnasium as gym, numpy as np

class Drone(gym.Env):
    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, wind=0.0):
        self.wind = wind

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.place = 0, np.zeros(2, np.float32)
        return self.place.copy(), {}

    def step(self, action):
        self.steps += 1
        moved = self.place + [0.1 * self.place[1], 0.1 * float(action[0]) + self.wind]
        self.place = np.clip(moved, -10, 10).astype(np.float32)
        return self.place.copy(), -abs(float(self.place[0] - 1)), False, self.steps >= 10, {}

def windy(wind=0.1):
    return Drone(wind)

class Crashing(Drone):
    def __init__(self):
        raise RuntimeError("no battery")

class Dials(Drone):
    action_space = gym.spaces.MultiDiscrete([10] * 6)

not_an_environment = 3
gym.register("Drone-v0", entry_point=Drone, max_episode_steps=5)
gym.register("NamedDrone-v0", entry_point="drone:Drone", max_episode_steps=5)
"""
RULES = """
import numpy as np, rlpd_gx as gx

power = gx.bounds_rule(lambda state: (np.array([-0.5]), np.array([0.5])), name="power")
pair = gx.rule(lambda state, action: action[0] < action[1], name="pair")
parts = gx.mask_rule(lambda state: [[True] * 10] * 5 + [[True] * 9], name="parts")
"""
WATCHED = """
from my_rules import power

def unsafe_event(observation, reward, terminated, truncated, info):
    return bool(abs(observation[1]) > 0.1)
"""
MISWATCHED = """
from my_rules import power

def unsafe_event(observation, info):
    return bool(abs(observation[1]) > 0.1)
"""
ANSWERS = """
import contextlib, io, json, os, sys
import rlpd_gx.cli

os.environ.setdefault("OMP_NUM_THREADS", "1")
answers = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["rlpd-gx", *words]
    error, code = io.StringIO(), "no exit"
    try:
        with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
            rlpd_gx.cli.main()
    except SystemExit as stop:
        code = stop.code
    except BaseException as raised:  # a traceback, if the command were alone
        code = repr(raised)
    answers.append((code, error.getvalue()))
print(json.dumps(answers))
"""


def fill(folder: Path) -> None:
    """Write the user's files."""
    import numpy as np

    files = {
        "drone.py": DRONE,
        "my_rules.py": RULES,
        "watched.py": WATCHED,
        "miswatched.py": MISWATCHED,
        "needs.py": "import no_such_package\n",
        "typo.py": "def f(:\n",
        "broken.yaml": "a: [1\n",
        "unknown.yaml": "stepps: 1\n",
        "wrong.yaml": "run: {steps: many}\n",
        "preset.yaml": "preset: [rlpd]\n",
        "null.yaml": "guard: null\n",
        "list.json": "[1]",
        "settings.ini": "",
        "process.csv": "time,pressure,valve\n0,1.5,0.2\n1,1.6,0.1\n",
        "answers.py": ANSWERS,
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    np.savez(
        folder / "flights.npz",
        observations=np.zeros((5, 2), np.float32), actions=np.zeros((5, 1), np.float32),
        rewards=np.zeros(5), terminals=np.array([0, 0, 0, 0, 1], bool),
    )  # fmt: skip


def command_lines(lines: list[list[str]]) -> str:
    """The argument of answers.py."""
    return json.dumps(lines)
