"""A run folder is bound to what it was started with, belongs to one process, and survives a bad start."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlpd_gx.errors import GxError
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.resume import Saver, load_learner, resume
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer
from rlpd_gx.report.records import read_run

TINY: dict[str, Any] = {
    "env": "Probe/LureDiscrete-v0", "rules": "rlpd_gx.envs.probes:lure_mask", "steps": 30, "utd": 1, "batch_size": 4,
    "hidden_sizes": (8,), "ensemble_size": 2, "learning_starts": 10, "evaluate_every": 0, "evaluation_episodes": 1,
    "checkpoint_every": 10, "log_every": 5, "device": "cpu",
}  # fmt: skip


def begun(path: Path, **values: Any) -> tuple[Trainer, Saver]:
    config = configure("rlpd-gx", TINY | values, "test")
    trainer = Trainer(Task(config), RunFolder.create(path, config, "test"))
    trainer.begin()
    return trainer, Saver(trainer.folder)


def finished(path: Path, **values: Any) -> Path:
    trainer, saver = begun(path, **values)
    trainer.train(saver)
    return path


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("name", "value"), [("guard", "none"), ("seed", 1), ("rules", ""), ("gamma", 0.9), ("command", "another")]
)
def test_another_setting_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    run = finished(tmp_path / "run")
    before = json.loads((run / "config.json").read_text())[name]
    edit(run / "config.json", **{name: value})
    for act in (resume, load_learner):
        with pytest.raises(
            GxError, match=f"{name} is {value!r}, but the checkpoint was made with {before!r}"
        ):
            act(run)


@pytest.mark.parametrize("content", ['"text"', "[]", "{", '{"format": "two"}', '{"format": 1, "seed": 0}'])
def test_a_config_of_another_kind_is_one_sentence(tmp_path: Path, content: str) -> None:
    run = finished(tmp_path / "run")
    (run / "config.json").write_text(content)
    with pytest.raises(GxError, match=r"config\.json"):
        resume(run)


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    trainer, saver = begun(tmp_path)
    saver.bound_to(trainer.task)["format"] = 0
    saver(trainer)
    with pytest.raises(GxError, match="another version of rlpd-gx and cannot be continued"):
        resume(tmp_path)


def test_a_first_checkpoint_that_fails_can_be_tried_again(tmp_path: Path) -> None:
    whole = finished(tmp_path / "whole")
    trainer, saver = begun(tmp_path / "run")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, limit[1]))  # as if the disk were full
    try:
        with pytest.raises(GxError, match="cannot be written"):
            saver(trainer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    with pytest.raises(GxError, match="go on with --resume"):
        begun(tmp_path / "run")
    again, saver, notes = resume(tmp_path / "run")
    assert notes == ["there is no checkpoint yet: the run begins"]
    again.train(saver)
    for name in ("metrics.jsonl", "audit.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes()


def test_a_run_without_a_checkpoint_keeps_the_first_line_of_its_audit(tmp_path: Path) -> None:
    begun(tmp_path)
    resume(tmp_path)
    first = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in first] == ["start"]


def test_only_one_process_may_write(tmp_path: Path) -> None:
    trainer, saver = begun(tmp_path)
    saver(trainer)
    script = (
        f"from pathlib import Path; from rlpd_gx.loop.resume import resume; resume(Path({str(tmp_path)!r}))"
    )
    other = [sys.executable, "-c", script]
    refused = subprocess.run(other, capture_output=True, text=True)
    assert f"process {os.getpid()} is writing this run" in refused.stderr
    trainer.train(saver)  # which gives the folder back
    assert subprocess.run(other, capture_output=True, text=True).returncode == 0


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    trainer, saver = begun(tmp_path)
    saver(trainer)
    foreign = ["notes.jsonl", "audit-7.jsonl", "metrics.jsonl.old"]
    for name in foreign:
        (tmp_path / name).write_text("mine\n")
    trainer.train(saver)
    again, saver, _ = resume(tmp_path)
    saver(again)
    assert {(tmp_path / name).read_text() for name in foreign} == {"mine\n"}


def test_rows_before_the_checkpoint_that_are_damaged_are_reported(tmp_path: Path) -> None:
    run = finished(tmp_path)
    metrics = run / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole.replace(b"train", b"brain", 1))
    assert "metrics.jsonl: was changed in its first" in resume(run)[2][0]
    metrics.write_bytes(whole[:-10])
    again, _, notes = resume(run)
    assert f"metrics.jsonl: lost 10 of its first {len(whole):,} bytes" in notes[0]
    again.report("train", loss=1.0)
    rows = read_run(run)
    assert rows.rows[-1]["loss"] == 1.0  # not part of the torn row
    assert any("1 of" in note and "metrics.jsonl cannot be read" in note for note in rows.notes)


def offline(path: Path) -> Path:
    rng = np.random.default_rng(0)
    ends = np.arange(40) % 4 == 3
    columns = {
        "observations": np.tile([[0.0], [1.0]], (20, 1)).astype(np.float32),
        "actions": rng.integers(0, 2, 40),
        "rewards": rng.normal(size=40).astype(np.float32),
        "terminals": ends & (np.arange(40) % 8 == 7),
        "timeouts": ends & (np.arange(40) % 8 == 3),
    }
    np.savez(path, **columns)
    return path


@pytest.mark.parametrize("column", ["observations", "actions", "rewards", "terminals"])
def test_every_column_of_the_offline_data_counts(tmp_path: Path, column: str) -> None:
    data, run = offline(tmp_path / "data.npz"), tmp_path / "run"
    finished(run, offline=str(data), steps=10)
    resume(run)
    with np.load(data) as file:
        columns = dict(file)
    if column == "terminals":  # an end becomes a time limit
        columns["terminals"][7], columns["timeouts"][7] = False, True
    else:
        columns[column][5] = 1 - columns[column][5]
    np.savez(data, **columns)
    with pytest.raises(GxError, match="is not what the run began with"):
        resume(run)


RULES = """
import numpy as np
import rlpd_gx as gx

def state(env, observation, info):
    return observation

near_miss, fallback, initial_action, embedding = 0.1, 0, 0, [[0.0], [1.0], [2.0]]

def unsafe_event(observation, reward, terminated, truncated, info):
    return False

@gx.mask_rule
def limit(state):
    return np.array([True, True, False])
"""


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("rules", "[True, True, False]", "[True, True, True]"),
        ("state", "return observation", "return observation * 0"),
        ("fallback", "0.1, 0, 0", "0.1, 1, 0"),
        ("near_miss", "0.1, 0, 0", "0.2, 0, 0"),
        ("initial_action", "0.1, 0, 0", "0.1, 0, 1"),
        ("rules", "[2.0]]", "[3.0]]"),
        ("unsafe_event", "return False", "return True"),
    ],
)
def test_every_option_of_the_guard_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str
) -> None:
    module = tmp_path / "guard_rules.py"
    module.write_text(RULES)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "guard_rules", raising=False)
    run = finished(tmp_path / "run", rules="guard_rules:limit", steps=10)
    resume(run)
    module.write_text(RULES.replace(old, new, 1))
    sys.modules.pop("guard_rules")
    with pytest.raises(GxError, match=f"the .*{name}.* of guard_rules:limit changed since the checkpoint"):
        resume(run)
    module.write_text(f"# a comment\n{RULES}")
    sys.modules.pop("guard_rules")
    resume(run)
