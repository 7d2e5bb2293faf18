"""The first hour, as it is typed: own environment, own rules, own data, from the shell and from Python."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

MAPPING = {"observations": ["x", "v"], "actions": "force", "rewards": "reward", "terminals": "done"}


def test_an_own_environment_from_rules_to_export(typed, user):
    answers = typed(
        "rlpd-gx --version",
        "rlpd-gx guard --env drone:Drone --rules my_rules:power --episodes 1",
        "rlpd-gx guard --env drone:Drone-v0 --rules my_rules:power --episodes 1",
        """rlpd-gx guard --env drone:windy --env-kwargs '{"wind": 0.2}' --env-wrappers wrap:Half """
        "--rules my_rules:power --episodes 1 --compare",
        "rlpd-gx collect --env drone:Drone --env-wrappers wrap:Half --episodes 3 --out flights",
        "rlpd-gx data audit flights --env drone:Drone --env-wrappers wrap:Half",
        "rlpd-gx data convert flights --env drone:Drone --rules my_rules:power --out safe_flights",
        "rlpd-gx train --env drone:Drone --env-wrappers wrap:Half --rules my_rules:power --offline safe_flights "
        "--steps 20 --out runs/first TINY",
        "rlpd-gx evaluate runs/first --episodes 1",
        "rlpd-gx train --resume runs/first --steps 30 --quiet",
        "rlpd-gx train --from runs/first@10 --guard none --learning-rate 1e-4 --out runs/bold",
        "rlpd-gx export runs/first --out exported",
        "rlpd-gx guard --env drone:Drone --rules my_rules:power --policy exported --episodes 1",
    )
    assert answers[0].out.startswith("rlpd-gx ")
    train, resumed, forked = answers[7], answers[9], answers[10]
    lines = [line for line in train.error.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["10/20", "20/20"]  # one plain line each log_every
    assert resumed.error == ""
    assert "forked from runs/first at step 10" in forked.error
    config = json.loads((user / "runs/bold/config.json").read_text())
    assert (config["forked_from"], config["guard"]) == ("runs/first@10", "none")
    assert config["env_kwargs"] == {"wrappers": ["wrap:Half"]}
    assert "Forbidden actions executed" in train.out
    assert "not watched" in train.out  # drone.py defines no unsafe event
    assert "no guard" in forked.out


def test_without_rules_and_without_a_guard(typed):
    without, monitored = typed(
        "rlpd-gx train --env drone:Drone --steps 20 --out runs/free TINY",
        "rlpd-gx train --env drone:Drone --rules watched:power --guard none --steps 20 --out runs/watched TINY",
    )
    assert "no rules: training without a guard" in without.error
    assert "corrections" not in without.error + monitored.error
    assert "Unsafe episodes" in monitored.out


def test_guarded_and_unguarded_on_one_page(typed, user):
    (answer,) = typed(
        "rlpd-gx train --env drone:Drone --rules watched:power --compare --steps 20 --out runs/both TINY"
    )
    assert "Unsafe episodes" in answer.out
    assert "guardian  no guard" in answer.out  # one table, a column for each
    page = (user / "runs/both/comparison.html").read_text()
    assert "report.html" in page
    assert "both-unguarded/report.html" in page


def write_log(path: Path, *, hole: bool = False, shuffled: bool = False) -> None:
    generator = np.random.default_rng(0)
    rows = [
        [
            episode,
            *generator.normal(size=2).round(3),
            round(generator.uniform(-0.5, 0.5), 3),
            1.0,
            int(step == 9),
        ]
        for episode in range(3)
        for step in range(10)
    ]
    if hole:
        rows[7][1] = ""
    if shuffled:
        rows = [rows[i] for i in generator.permutation(len(rows))]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["episode", "x", "v", "force", "reward", "done"], *rows])


def test_a_log_of_a_process(typed, user):
    write_log(user / "log.csv")
    write_log(user / "hole.csv", hole=True)
    write_log(user / "mixed.csv", shuffled=True)
    (user / "names.json").write_text(json.dumps(MAPPING))
    converted, cut, hole, mixed, _ = typed(
        "rlpd-gx data convert log.csv --mapping names.json --out log",
        "rlpd-gx data convert log.csv --mapping names.json --time-limit 10 --out limited",
        "rlpd-gx data audit hole.csv --mapping names.json",
        "rlpd-gx data audit mixed.csv --mapping names.json",
        "rlpd-gx train --env drone:Drone --rules my_rules:power --offline limited --steps 20 --out runs/log TINY",
    )
    assert "30 steps in 3 episodes" in converted.out
    assert "27 steps in 3 episodes" in cut.out  # the last observation of each is not in the file
    assert "is empty or NaN" in " ".join(hole.out.replace("│", " ").split())
    assert "look shuffled" in " ".join(mixed.out.replace("│", " ").split())


SCRIPT = """
import gymnasium as gym, numpy as np
import rlpd_gx as gx
from drone import Drone

SMALL = dict(utd=1, batch_size=8, hidden_sizes=(8,), ensemble_size=2, learning_starts=8, evaluation_episodes=1,
             evaluate_every=0, checkpoint_every=10, device="cpu", progress=False)

class Mine(Drone):  # in the script itself, as in a notebook
    pass

class Panel(Mine):
    action_space = gym.spaces.MultiDiscrete([2, 3])
    def step(self, action):
        return super().step(np.array([action[1] - 1.0]))

@gx.bounds_rule
def power(state):
    return [-0.5], [0.5]

@gx.rule
def not_hard_left(state, action):
    return bool(action[0] > -0.25)

@gx.mask_rule
def no_second_dial(state):
    return np.ones(2, bool), np.array([True, True, False])

run = gx.train(Mine, rules=[power, not_hard_left], steps=20, out="runs/mine", **SMALL)
observation = np.zeros(2, np.float32)
assert -0.25 < run.policy.act(observation).action[0] <= 0.5
assert len(run.evaluate(episodes=2)["returns"]) == 2
assert run.report().exists() and run.folder.name == "mine"
assert run.resume(steps=30, progress=False).result["steps"] == 30
assert run.fork(20, steps=40, tau=0.01, progress=False).result["steps"] == 40
assert type(gx.load_policy(run.folder)) is type(run.policy)
assert (gx.load_policy(run.folder).act(observation).action == gx.Run(run.folder).policy.act(observation).action).all()
gx.train(lambda: Mine(wind=0.1), steps=20, out="runs/factory", offline="flights.npz", **SMALL)
panel = gx.train(Panel, no_second_dial, steps=20, out="runs/panel", **SMALL)
assert panel.policy.act(observation).action[1] < 2
print("done")
"""


def test_python(user):
    (user / "mine.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "mine.py"], cwd=user, capture_output=True, text=True)
    assert done.stdout.strip().endswith("done"), done.stderr
    assert "Traceback" not in done.stderr


def test_off_a_terminal_a_command_prints_lines_as_it_goes(user):
    """Typed in a real shell, through a pipe."""
    line = (
        f"{sys.executable} -m rlpd_gx train --env drone:Drone --steps 20 --log-every 5 --utd 1 --batch-size 8 "
        "--hidden-sizes 8 --ensemble-size 2 --learning-starts 8 --evaluation-episodes 1 2>&1 | cat"
    )
    done = subprocess.run(["bash", "-c", line], cwd=user, capture_output=True, text=True)
    assert done.stdout.count("\nstep ") == 4, done.stdout
    assert "Report: runs/Drone-rlpd-gx-seed0/report.html" in done.stdout
