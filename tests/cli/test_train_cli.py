"""`rlpd-gx train` and `evaluate` from the outside: what comes out, and what a mistake is answered with."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlpd_gx.config import PRESETS, Config
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
    assert "guardian" in done.stdout
    assert "report.html" in done.stdout
    written = json.loads((run / "config.json").read_text())
    assert (written["preset"], written["actor"], written["seed"]) == ("no-dss", "masked", 5)
    assert "--compare" in written["command"]

    played = rlpd_gx("evaluate", str(run), "--episodes=3", cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    assert len(json.loads(played.stdout)["returns"]) == 3


def test_a_game_is_learned_under_look_ahead_from_an_action_log(tmp_path: Path) -> None:
    log = [
        "--policy=rlpd_gx.experiments.atari_ram:mostly_up",
        "--format=action-log",
        "--steps=20",
        "--out=log.json.gz",
    ]
    done = rlpd_gx("collect", "--env=ALE/Freeway-v5", *log, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    game = ["--env=Atari/Freeway-ram", '--env-kwargs={"max_steps": 30}', "--observed=14,108,109", "--changes"]
    rules = ["--rules=rlpd_gx.envs.atari:Lookahead", "--offline=log.json.gz"]
    done = rlpd_gx("train", *game, *rules, *TINY, "--steps=30", "--out=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for part in (result["training"], result["evaluation"]):
        assert part["steps"] >= 30
        assert part["forbidden_executed"] == part["unsafe_events"] == part["fallbacks"] == 0
    assert result["rows"]["offline"] > 0
    assert result["simulated_steps"] > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--env=NoSuch-v0"], "NoSuch"),
        (["--env=Atari/NoSuch-ram"], "NoSuch"),
        (["--env=Probe/LureDiscrete-v0", "--rules=rlpd_gx.envs.probes:nothing"], "has no 'nothing'"),
        ([*PROBE, "--offline=missing.hdf5"], "missing.hdf5"),
        ([*PROBE, "--preset=best"], "there is no preset 'best'"),
        ([*PROBE, "--config=broken.yaml"], "broken.yaml"),
        ([*PROBE, "--config=unknown.yaml"], "no setting 'banana'"),
        ([*PROBE, "--device=quantum"], "--device quantum"),
        ([*PROBE, "--target-subset=99"], "target_subset"),
        (["--env=Probe/ConstantDiscrete-v0"], "backup=none"),
        (["--resume=nowhere"], "holds no run"),
        ([], "--env"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    (tmp_path / "unknown.yaml").write_text("banana: 1\n")
    done = rlpd_gx("train", *arguments, *([] if "--resume=nowhere" in arguments else TINY), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_dataset_of_another_task_is_refused(tmp_path: Path) -> None:
    import numpy as np

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
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any) -> None:
    with pytest.raises(GxError, match=name):
        with_values(Config(), {name: value}, "test")


def test_files_may_have_sections_or_not(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("preset: paper\nlearner: {ensemble_size: 4}\nsteps: 7\n")
    (tmp_path / "b.json").write_text('{"preset": "paper", "ensemble_size": 4, "run": {"steps": 7}}')
    assert read_file(tmp_path / "a.yaml") == read_file(tmp_path / "b.json")
