"""Sweeps: what runs, what is kept, and what a kill in the middle changes (nothing)."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from rlpd_gx.cli.arguments import Parser
from rlpd_gx.cli.train import in_force, train
from rlpd_gx.errors import GxError
from rlpd_gx.experiments.plan import Planned, grid
from rlpd_gx.experiments.rows import Table, _thinned
from rlpd_gx.experiments.sweep import Sweep

SMALL = {
    "env": "CartPole-v1",
    "steps": 300,
    "learning_starts": 50,
    "utd": 1.0,
    "hidden_sizes": (16, 16),
    "batch_size": 16,
    "ensemble_size": 2,
    "evaluation_episodes": 1,
    "evaluate_every": 0,
    "checkpoint_every": 50,
    "log_every": 50,
}
FLAGS = [
    "--env=CartPole-v1", "--steps=300", "--learning-starts=50", "--utd=1", "--hidden-sizes=16,16", "--batch-size=16",
    "--ensemble-size=2", "--evaluation-episodes=1", "--evaluate-every=0", "--checkpoint-every=50", "--log-every=50",
]  # fmt: skip


def sweep(out, *more):
    words = [
        sys.executable,
        "-m",
        "rlpd_gx",
        "sweep",
        "--grid",
        "seed=0..2",
        "--out",
        str(out),
        *FLAGS,
        *more,
    ]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process, code=0):
    """What it said, once it has ended."""
    said, _ = process.communicate()
    assert process.returncode == code, said
    return said


def outcome(out):
    """What must not depend on how the sweep went: scores, counts, curves of each run, once each."""
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert len({row["fingerprint"] for row in rows}) == len(rows) == 3
    same = ("fingerprint", "returns", "curve", "curves", "training", "evaluation", "outside")
    return {row["seed"]: {name: row[name] for name in same} for row in rows}


def test_a_killed_sweep_continues_and_every_run_ends_once_with_the_same_numbers(tmp_path):
    undisturbed = sweep(tmp_path / "whole")
    killed = sweep(tmp_path / "killed")
    while not list((tmp_path / "killed").glob("*/metrics.jsonl")) and killed.poll() is None:
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    ended(killed, -signal.SIGKILL)
    assert len(Table(tmp_path / "killed" / "results.jsonl").rows()) < 3, "killed too late to test anything"
    assert "resumed" in ended(sweep(tmp_path / "killed"))
    ended(undisturbed)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    # nothing is left to do: runs with a row are not run again, even when their folders are gone
    for config in (tmp_path / "killed").glob("*/config.json"):
        config.unlink()
    assert "started" not in ended(sweep(tmp_path / "killed"))


def test_a_run_that_fails_is_one_sentence_and_the_others_finish(tmp_path):
    said = ended(sweep(tmp_path, "--grid", "warm-start-updates=0,5", "--grid", "seed=0"), code=1)
    assert "warm_start_updates learn from offline data" in said
    assert "Traceback" not in said
    assert len(Table(tmp_path / "results.jsonl").rows()) == 1


def test_grids():
    plan = grid(["seed=0..2", "guard=guardian,none", "online-ratio=0.8|0.05,0.5"], SMALL)
    assert len(plan) == 12
    assert len({one.fingerprint for one in plan}) == 12
    assert plan[1].config.data.online_ratio == (0.05, 0.5)
    assert plan[-1].labels["seed"] == "2"
    assert plan[-1].config.run.seed == 2


@pytest.mark.parametrize(
    ("axis", "says"),
    [
        ("seed", "takes setting=values"),
        ("seed=4..0", "range of whole numbers"),
        ("sed=1,2", "did you mean seed"),
        ("seed=1,1", "twice"),
        ("seed=one", "--grid: seed cannot be 'one'"),
    ],
)
def test_a_wrong_grid_is_one_sentence(axis, says):
    with pytest.raises(GxError, match=says):
        grid([axis], SMALL)


def test_the_command_of_a_run_makes_the_same_run():
    values = SMALL | {
        "env_kwargs": {"max_episode_steps": 20},
        "offline_where": ("a > 1", "b < 2"),
        "normalise": False,
        "compile": True,
        "online_ratio": (0.05, 0.5),
    }
    planned = Planned("a", values, preset="full")
    words = shlex.split(planned.command)
    assert words[:2] == ["rlpd-gx", "train"]
    typed = vars(Parser(train, "train").parse_args(words[2:]))
    given = {name: value for name, value in typed.items() if name in values}
    assert in_force(typed["preset"], None, given) == planned.config


def test_fingerprints_follow_settings_and_data_not_places(tmp_path):
    for folder, content in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "log.json").write_text(content)
    a, b, c = (Planned(f, SMALL | {"offline": str(tmp_path / f / "log.json")}) for f in "abc")
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert (
        Planned("x", SMALL).fingerprint
        == Planned("y", SMALL | {"device": "cpu", "log_every": 7, "compile": True}).fingerprint
    )
    assert Planned("x", SMALL).fingerprint != Planned("x", SMALL | {"seed": 1}).fingerprint
    assert Planned("x", SMALL, fork=a).fingerprint != Planned("x", SMALL).fingerprint


def test_fingerprints_follow_the_rules(tmp_path, monkeypatch):
    found = []
    for name, limit in (("one", 0.5), ("same", 0.5), ("other", 0.6)):
        text = f"""import numpy as np, rlpd_gx as gx
power = gx.bounds_rule(lambda state: (np.array([-{limit}]), np.array([{limit}])), name="power")
"""
        (tmp_path / f"rules_{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        values = {"env": "Pendulum-v1", "rules": f"rules_{name}:power"}
        found.append(Planned("x", values).fingerprint)
    assert found[0] == found[1] != found[2]


def test_a_table_survives_a_line_that_was_cut_short(tmp_path):
    table = Table(tmp_path / "rows.jsonl")
    table.add({"fingerprint": "a", "score": 1})
    with table.path.open("a") as file:
        file.write('{"fingerprint": "b", "sco')
    table.add({"fingerprint": "c", "score": 3})
    table.add({"fingerprint": "a", "score": 4})
    assert {name: row["score"] for name, row in table.rows().items()} == {"a": 4, "c": 3}


def test_the_newest_row_of_a_table_comes_last(tmp_path):
    table = Table(tmp_path / "x.jsonl")
    for fingerprint, score in (("a", 1), ("b", 2), ("a", 3)):
        table.add({"fingerprint": fingerprint, "score": score})
    assert [row["score"] for row in table.rows().values()] == [2, 3]


def test_thinned_curves_keep_the_last_step_and_the_mean():
    points = [(step, float(step)) for step in range(1, 101)]
    thin = _thinned(points)
    assert len(thin) == 25
    assert thin[-1] == [100, 98.5]
    assert _thinned(points[:3]) == [[1, 1.0], [2, 2.0], [3, 3.0]]
    assert _thinned([]) == []


def test_an_experiment_adopts_the_rows_that_another_has_of_the_same_run(tmp_path):
    asked = Planned("run", SMALL | {"seed": 3}, "rlpd", {"variant": "theirs", "seed": 3}, ("returns",))
    row = {"fingerprint": asked.fingerprint, "experiment": "first", **asked.labels, "score": 7.0}
    Table(tmp_path / "first.jsonl").add(row | {"measured": {"returns": 1, "more": 2}})
    ours = replace(asked, labels={"variant": "ours", "seed": 3})
    second = Sweep("second", [ours], tmp_path / "runs", Table(tmp_path / "second.jsonl"))
    assert second.left() == []
    assert not (tmp_path / "second.jsonl").exists()  # asking writes nothing
    second.adopt()
    second.adopt()
    (adopted,) = map(json.loads, (tmp_path / "second.jsonl").read_text().splitlines())
    assert (adopted["experiment"], adopted["variant"], adopted["score"]) == ("second", "ours", 7.0)
    assert adopted["measured"] == {"returns": 1}
    assert adopted["command"] == ours.command
    third = Table(tmp_path / "third.jsonl")
    third.add(row | {"measured": {}})  # made before anything was measured
    later = Sweep("third", [ours], tmp_path / "runs", third)
    assert later.left() == []
    later.adopt()
    assert third.rows()[ours.fingerprint]["measured"] == {"returns": 1}
    less = replace(ours, measuring={"episodes": 3})
    fewer = Table(tmp_path / "sixth.jsonl")
    fewer.add(row | {"measuring": {"episodes": 2}})
    assert Sweep("sixth", [less], tmp_path / "runs", fewer)._found(fewer.rows()) == {}
    unmeasured = replace(ours, measure=("novelty",))
    assert len(Sweep("fifth", [unmeasured], tmp_path / "runs", Table(tmp_path / "fifth.jsonl")).left()) == 1
    other = replace(ours, values=SMALL | {"seed": 4})
    assert len(Sweep("fourth", [other], tmp_path / "runs", Table(tmp_path / "fourth.jsonl")).left()) == 1
