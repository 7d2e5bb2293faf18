"""A run that was killed goes on as if nothing had happened: the same metrics, bit for bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlpd_gx.errors import GxError
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.resume import Saver, resume
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import PARTS, Trainer

EXAMPLE = Path(__file__).parents[2] / "examples" / "hopper-v5-early.hdf5"
TINY: dict[str, Any] = {
    "steps": 200, "utd": 1, "batch_size": 16, "hidden_sizes": "16,16", "ensemble_size": 3,
    "learning_starts": 20, "evaluate_every": 80, "evaluation_episodes": 1, "checkpoint_every": 30, "log_every": 20,
    "seed": 3,
}  # fmt: skip
TASKS: dict[str, dict[str, Any]] = {
    "two probes": {
        "env": "Probe/LureDiscrete-v0", "rules": "rlpd_gx.envs.probes:lure_mask", "num_envs": 2, "sampler": "span",
    },
    "mujoco": {
        "env": "Hopper-v5", "rules": "rlpd_gx.envs.mujoco:power", "sampler": "stride",
    },
    "look-ahead": {
        "env": "Atari/Seaquest-ram", "rules": "rlpd_gx.envs.atari:Lookahead", "env_kwargs": '{"max_steps": 60}',
        "steps": 90, "evaluate_every": 0,
    },
    "atari": {"env": "Atari/Pong-ram", "env_kwargs": '{"max_steps": 120}'},
    "compiled": {
        "env": "Probe/LureDiscrete-v0", "rules": "rlpd_gx.envs.probes:lure_mask", "compile": True,
    },
    "compiled, continuous": {
        "env": "Hopper-v5", "rules": "rlpd_gx.envs.mujoco:power", "compile": True,
    },
}  # fmt: skip


def _command(out: Path, task: str) -> list[str]:
    values = TINY | TASKS[task]
    named = {name.replace("_", "-"): value for name, value in values.items()}
    flags = [f"--{name}" if value is True else f"--{name}={value}" for name, value in named.items()]
    return [sys.executable, "-m", "rlpd_gx", "train", f"--out={out}", *flags]


def _resume(out: Path) -> list[str]:
    return [sys.executable, "-m", "rlpd_gx", "train", f"--resume={out}"]


def _outcome(out: Path) -> tuple[bytes, dict[str, Any], list[Any]]:
    """All that must be the same: metrics, result without the clock, and what the audit says."""
    result = json.loads((out / "result.json").read_text())
    result.pop("seconds")
    audits = [file.read_bytes() for file in sorted(out.glob("audit*.jsonl"))]
    return (out / "metrics.jsonl").read_bytes(), result, audits


def _rows(out: Path) -> int:
    file = out / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _marked(task: str) -> Any:
    return pytest.param(task, marks=pytest.mark.long) if "compile" in TASKS[task] else task


@pytest.mark.parametrize("task", [_marked(task) for task in TASKS])
def test_killed_at_random_moments_it_ends_the_same(tmp_path: Path, task: str) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(_command(whole, task), check=True, capture_output=True)
    moments = random.Random(task)
    total, kills, command = _rows(whole), 0, _command(killed, task)
    while True:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until = _rows(killed) + moments.randint(1, max(total // 2, 2))
        while process.poll() is None and not (
            kills < 2 and _rows(killed) >= until and (killed / "checkpoints").exists()
        ):
            time.sleep(moments.uniform(0.0, 0.02))
        if process.poll() is None:
            process.kill()
            kills += 1
        _, error = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, error.decode()
        command = _resume(killed)
    assert kills == 2
    assert _outcome(killed) == _outcome(whole)


def test_sigterm_saves_and_the_run_goes_on(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    subprocess.run(_command(whole, "mujoco"), check=True, capture_output=True)
    process = subprocess.Popen(_command(stopped, "mujoco"), stderr=subprocess.PIPE, text=True)
    while _rows(stopped) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert "SIGTERM" in error
    assert "--resume" in error
    assert not (stopped / "result.json").exists()
    subprocess.run(_resume(stopped), check=True, capture_output=True)
    assert _outcome(stopped) == _outcome(whole)


def _trainer(out: Path, **values: Any) -> tuple[Trainer, Saver]:
    config = configure("rlpd-gx", TINY | values, "test")
    trainer = Trainer(Task(config), RunFolder.create(out, config, "test"))
    saver = Saver(trainer.folder)
    trainer.begin()
    saver(trainer)
    return trainer, saver


def _killed_before_the_last_checkpoint(out: Path) -> None:
    shutil.rmtree(sorted((out / "checkpoints").iterdir())[-1])


def test_simulated_steps_of_earlier_evaluations_are_not_lost(tmp_path: Path) -> None:
    values = TASKS["look-ahead"] | {
        "env_kwargs": {"max_steps": 20},
        "steps": 60,
        "evaluate_every": 30,
        "checkpoint_every": 30,
    }
    trainer, saver = _trainer(tmp_path, **values)
    whole = trainer.train(saver)
    _killed_before_the_last_checkpoint(tmp_path)
    again, saver, _ = resume(tmp_path)
    assert again.step == 30
    assert sum(rule.simulated_steps for rule in again.evaluation_environment.look_aheads) > 0
    assert again.train(saver)["simulated_steps"] == whole["simulated_steps"]


def test_a_killed_run_keeps_its_time(tmp_path: Path) -> None:
    trainer, saver = _trainer(tmp_path, **TASKS["two probes"] | {"steps": 60})
    trainer.train(saver)
    _killed_before_the_last_checkpoint(tmp_path)
    again, saver, _ = resume(tmp_path)
    before = dict(again.seconds)
    for seconds in (before, again.train(saver)["seconds"]):
        parts = sum(seconds[name] for name in PARTS)
        assert seconds["total"] > parts - 0.01 > 0  # rounded
    assert again.seconds["total"] > before["total"]
    assert again.seconds["processor"] > before["processor"] > 0


def test_more_steps_hold_also_without_a_checkpoint(tmp_path: Path) -> None:
    config = configure("rlpd-gx", TINY | TASKS["two probes"] | {"steps": 40}, "test")
    RunFolder.create(tmp_path, config, "test").release()  # killed before the first checkpoint
    resume(tmp_path, steps=60)
    assert RunFolder.open(tmp_path)[1].run.steps == 60
    again, saver, _ = resume(tmp_path)
    assert again.train(saver)["steps"] == 60


@pytest.mark.parametrize("left", ["result.json", "metrics.jsonl", "replay"])
def test_a_run_whose_checkpoints_are_gone_is_not_thrown_away(tmp_path: Path, left: str) -> None:
    trainer, saver = _trainer(tmp_path, **TASKS["two probes"], steps=20)
    trainer.train(saver)
    shutil.rmtree(tmp_path / "checkpoints")
    for name in {"result.json", "metrics.jsonl"} - {left}:
        (tmp_path / name).unlink()
    if left != "replay":
        shutil.rmtree(tmp_path / "replay")
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.json*")}
    with pytest.raises(GxError, match="the checkpoints of this run are gone, though it has taken steps"):
        resume(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.glob("*.json*")} == before


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    trainer, saver = _trainer(tmp_path, **TASKS["two probes"], steps=60)
    trainer.train(saver)
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    tensors = newest / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[len(content) // 2] ^= 1
    tensors.write_bytes(content)
    again, _, notes = resume(tmp_path)
    assert again.step < 60
    assert len(notes) == 1
    assert str(newest.name) in notes[0]


def test_an_environment_that_cannot_be_saved_begins_anew_and_says_so(tmp_path: Path) -> None:
    values = {"env": "odd_envs:Odd/Plain-v0", "steps": 65}
    trainer, saver = _trainer(tmp_path, **values)
    trainer.train(saver)
    again, _, notes = resume(tmp_path)
    assert again.step == 65
    assert "starts over" in notes[0]
    assert "Plain" in notes[0]


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_evidence(tmp_path: Path) -> None:
    values = {
        "env": "odd_envs:Odd/Poisoned-v0",
        "env_kwargs": {"poisoned_after": 70},
        "backup": "none",
        "actor": "raw",
    }
    trainer, saver = _trainer(tmp_path, **values)
    with pytest.raises(GxError, match="not finite") as caught:
        trainer.train(saver)
    assert "diverged.npz" in str(caught.value)
    with np.load(tmp_path / "diverged.npz") as batch:
        assert (batch["reward"] > 1e37).any()
        assert batch["observation"].shape == (16, 2)
    again, _, _ = resume(tmp_path)
    assert again.step == 60
    parameters = again.learner.state()["critic"].values()
    assert all(bool(p.isfinite().all()) for p in parameters)


def test_changed_rules_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rules.py").write_text(RULES.format(limit=0.5))
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    trainer, saver = _trainer(run, env="Probe/ActedContinuous-v0", rules="my_rules:limit", steps=40)
    trainer.train(saver)
    sys.modules.pop("my_rules")
    (tmp_path / "my_rules.py").write_text(RULES.format(limit=0.25))
    os.utime(tmp_path / "my_rules.py", (0, 0))  # or Python would take the compiled file of the same second
    with pytest.raises(GxError, match="the rules of my_rules:limit changed since the checkpoint"):
        resume(run)


def test_other_offline_data_is_refused(tmp_path: Path) -> None:
    data, run = tmp_path / "data.hdf5", tmp_path / "run"
    shutil.copy(EXAMPLE, data)
    trainer, saver = _trainer(run, env="Hopper-v5", offline=str(data), backup="none", actor="raw", steps=20)
    trainer.train(saver)
    resume(run)
    with h5py.File(data, "r+") as file:
        file["rewards"][100] += 1
    with pytest.raises(GxError, match="hdf5 is not what the run began with"):
        resume(run)


RULES = """
import numpy as np
import rlpd_gx as gx

@gx.bounds_rule
def limit(state):
    return np.array([-{limit}]), np.array([{limit}])
"""
