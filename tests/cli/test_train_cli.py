"""`rlpd-gx train` and `evaluate` from the outside: what comes out, and what a mistake is answered with."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from users_folder import fill

from rlpd_gx.config import PRESETS, Config
from rlpd_gx.envs.making import make
from rlpd_gx.errors import GxError
from rlpd_gx.loop.configure import configure
from rlpd_gx.settings import SETTINGS, flat, from_flat, read_file, with_values

TINY = ["--utd=1", "--batch-size=8", "--hidden-sizes=8,8", "--ensemble-size=2", "--learning-starts=8",
        "--evaluation-episodes=1"]  # fmt: skip
PROBE = ["--env=Probe/LureDiscrete-v0", "--rules=rlpd_gx.envs.probes:lure_mask"]


def rlpd_gx(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlpd_gx", *arguments], cwd=cwd, capture_output=True, text=True
    )


def test_a_run_is_complete_and_is_compared(tmp_path: Path) -> None:
    config = tmp_path / "probe.toml"
    config.write_text('preset = "no-dss"\n[run]\nsteps = 40\nseed = 4\n[learner]\nactor = "masked"\n')
    done = rlpd_gx("train", *PROBE, *TINY, "--config=probe.toml", "--seed=5", "--compare", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "Probe-LureDiscrete-v0-no-dss-seed5"
    bare = run.with_name(f"{run.name}-unguarded")
    for folder, guard in ((run, "guardian"), (bare, "none")):
        names = {file.name for file in folder.iterdir()}
        assert names >= {"config.json", "versions.json", "metrics.jsonl", "result.json", "report.html",
                         "audit.jsonl", "checkpoints", "replay"}  # fmt: skip
        result = json.loads((folder / "result.json").read_text())
        assert (result["guard"], result["seed"], result["steps"]) == (guard, 5, 40)
    guarded, unguarded = (json.loads((f / "result.json").read_text())["training"] for f in (run, bare))
    assert guarded["forbidden_executed"] == 0
    assert unguarded["forbidden_executed"] > 0
    assert re.search(r"^Training +guardian +no guard$", done.stdout, re.M)
    assert "cannot be drawn" in done.stderr
    written = json.loads((run / "config.json").read_text())
    assert (written["preset"], written["actor"], written["seed"]) == ("no-dss", "masked", 5)
    again = (
        written["command"].removeprefix("rlpd-gx ").replace(str(run.relative_to(tmp_path)), "again").split()
    )
    assert "--compare" not in again  # each is an ordinary run, which its own command repeats
    assert rlpd_gx(*again, cwd=tmp_path).returncode == 0
    assert (tmp_path / "again" / "metrics.jsonl").read_text() == (run / "metrics.jsonl").read_text()

    played = rlpd_gx("evaluate", str(run), "--episodes=3", cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    assert len(json.loads(played.stdout)["returns"]) == 3


def test_a_game_is_learned_under_look_ahead_from_an_action_log(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("def up(observation):\n    return 1\n")
    log = [
        "--policy=script:up",
        "--format=action-log",
        "--steps=20",
        "--out=log.json.gz",
    ]
    done = rlpd_gx("collect", "--env=ALE/Freeway-v5", *log, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    game = ["--env=Atari/Freeway-objects", '--env-kwargs={"max_steps": 30}']
    rules = ["--rules=rlpd_gx.envs.atari:Lookahead", "--offline=log.json.gz"]
    done = rlpd_gx("train", *game, *rules, *TINY, "--steps=30", "--out=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for part in (result["training"], result["evaluation"]):
        assert part["steps"] >= 30
        assert part["forbidden_executed"] == part["unsafe_events"] == part["fallback"] == 0
    assert result["rows"]["offline"] > 0
    assert result["simulated_steps"] > 0


LINE = re.compile(
    r"step (\d+)/60  return -[\d.]+(  evaluated -[\d.]+)?  corrections [\d.]+%  unsafe events (\d+|not watched)"
    r"(  [\d.]+ steps/s  \d+ s left)?"
)


def test_off_a_terminal_each_log_every_is_a_line_and_the_tables_say_what_was_watched(tmp_path: Path) -> None:
    fill(tmp_path)
    words = ["--env=drone:Drone-v0", *TINY, "--steps=60", "--log-every=20", "--evaluate-every=20"]
    done = rlpd_gx("train", *words, "--rules=watched:power", "--compare", "--out=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    beside = ("no video", "note: compiling")  # the first process on a machine compiles, and says so
    lines = [line.split("  ", 1) for line in done.stderr.splitlines() if not line.startswith(beside)]
    shown = {name: [line.strip() for who, line in lines if who == name] for name in ("guardian", "no guard")}
    for line, step in zip(shown["guardian"], (20, 40, 60), strict=True):
        found = LINE.fullmatch(line)
        assert found, line
        assert int(found[1]) == step
        assert found[3] != "not watched"
        assert (found[2] is None) == (step == 20)
    assert len(shown["no guard"]) == 3
    # without a guard nothing is corrected
    assert not any("corrections" in line for line in shown["no guard"])
    assert max(map(len, done.stdout.splitlines())) <= 80
    training = done.stdout.partition("\nTraining")[2]
    assert re.search(r"Corrections +[\d,]+ +no guard", training)
    assert re.search(r"Unsafe episodes +\d+ of 12 +\d+ of 12", training)
    page = (tmp_path / "run" / "comparison.html").read_text()
    assert 'href="report.html"' in page
    assert 'href="../run-unguarded/report.html"' in page

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"eval/return", "guard/correction_rate", "time/steps_per_second", "train/critic_loss",
            "train/episode_return", "guard/unsafe_event_rate"} <= tags  # fmt: skip
    assert {tag.partition("/")[0] for tag in tags} == {"eval", "guard", "time", "train"}
    assert [event.step for event in events.Scalars("eval/return")] == [20, 40, 60]


def test_without_rules_it_trains_without_a_guard_and_says_so(tmp_path: Path) -> None:
    fill(tmp_path)
    words = ["--env=drone:windy", '--env-kwargs={"wind": 0.2}', *TINY, "--steps=20"]
    done = rlpd_gx("train", *words, "--out=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "no rules: training without a guard"
    assert re.search(r"Unsafe events +not watched +not watched", done.stdout)
    assert re.search(r"Forbidden actions executed +no rules +no rules", done.stdout)
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (settings["guard"], settings["backup"], settings["env_kwargs"]) == ("none", "none", {"wind": 0.2})
    quiet = rlpd_gx("train", *words, "--out=again", "--quiet", cwd=tmp_path)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert "Report: again/report.html" in quiet.stdout


@pytest.mark.parametrize("env", ["drone:Drone", "drone:windy", "drone:Drone-v0", "drone:NamedDrone-v0"])
def test_ones_own_environment_in_the_current_folder(env: str, tmp_path: Path, monkeypatch: Any) -> None:
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("drone", None)
    for name in ("Drone-v0", "NamedDrone-v0"):
        gym.registry.pop(name, None)
    made = make(env)
    made.reset(seed=0)
    steps = 1
    while not made.step(np.zeros(1, np.float32))[3]:
        steps += 1
    assert steps == (5 if "-v" in env else 10)
    short = make(env, max_episode_steps=2)
    short.reset(seed=0)
    assert [short.step(np.zeros(1, np.float32))[3] for _ in range(2)] == [False, True]
    assert make("drone:windy", wind=3.0).unwrapped.wind == 3.0


def test_a_dataset_of_another_task_is_refused(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "other.npz", observations=np.zeros((5, 3), np.float32), actions=np.zeros((5, 2), np.float32),
        rewards=np.zeros(5), terminals=np.array([0, 0, 0, 0, 1], bool),
    )  # fmt: skip
    done = rlpd_gx("train", *PROBE, *TINY, "--offline=other.npz", cwd=tmp_path)
    assert done.returncode == 2
    assert "other.npz" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_preset_is_a_config_and_every_setting_has_its_sentence() -> None:
    for name in PRESETS:
        config = configure(name)
        assert from_flat(flat(config), "test") == config
    assert all(setting.help.endswith(".") for setting in SETTINGS.values())
    assert configure("rlpd-gx", {"rules": "a:b"}) == with_values(Config(), {"rules": "a:b"}, "test")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 1.5),
        ("backup", "maybe"),
        ("hidden_sizes", "a,b"),
        ("env_kwargs", "[]"),
        ("layer_norm", "yes"),
        ("tau", float("inf")),
        ("seed", True),
        ("guard", None),
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any) -> None:
    with pytest.raises(GxError, match=name):
        with_values(Config(), {name: value}, "test")


def test_files_may_have_sections_or_not(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("preset: paper\nlearner: {ensemble_size: 4}\nsteps: 7\n")
    (tmp_path / "b.json").write_text('{"preset": "paper", "ensemble_size": 4, "run": {"steps": 7}}')
    assert read_file(tmp_path / "a.yaml") == read_file(tmp_path / "b.json")
