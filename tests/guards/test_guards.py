"""What each guard is defined by, and one that a user brings in a file of their own."""

import json
from pathlib import Path

import numpy as np
import pytest

from rlpd_gx import guards
from rlpd_gx.config import PRESETS
from rlpd_gx.errors import GxError
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.resume import Saver
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer

RULES = {"env": "Probe/LureDiscrete-v0", "rules": "rlpd_gx.envs.probes:lure_mask"}
SMALL = {
    "steps": 60, "hidden_sizes": (16,), "batch_size": 16, "learning_starts": 20, "utd": 1, "ensemble_size": 2,
    "evaluation_episodes": 1, "evaluate_every": 0, "device": "cpu",
}  # fmt: skip
DEFINED = {  # execution enforced, backup, execution: SPEC's table of guards
    "guardian": ("enforce", "project", "project"),
    "shield": ("enforce", "none", "project"),
    "mask": ("enforce", "none", "resample"),
    "none": ("monitor", "none", "project"),
}


def _trained(folder: Path, **settings: object) -> Trainer:
    config = configure("rlpd-gx", RULES | SMALL | settings, "test")
    trainer = Trainer(Task(config), RunFolder.create(folder, config, "test"))
    trainer.begin()
    trainer.train(Saver(trainer.folder))
    return trainer


def test_all_guards_are_defined() -> None:
    assert set(guards.NAMES) == set(DEFINED)
    for name, (mode, backup, execution) in DEFINED.items():
        guard = guards.find(name)
        assert (guard.name, guard.mode) == (name, mode)
        assert guard.learner == {"backup": backup, "execution": execution}


@pytest.mark.parametrize("name", DEFINED)
def test_forbidden_actions_run_only_without_a_guard(tmp_path: Path, name: str) -> None:
    """Counted from outside: the probe's lure is action 0 where its rule forbids it."""
    trainer = _trained(tmp_path / name, guard=name)
    steps = trainer.online.timeline.is_step
    executed = trainer.online.timeline.executed_action[steps]
    forbidden = trainer.online.timeline.margin[steps] < 0
    assert len(executed) == 60
    assert forbidden.any() == (name == "none")
    assert trainer.window.total.forbidden_executed == int(forbidden.sum())


def test_the_chosen_guard_overrides_the_preset_and_a_setting_overrides_both() -> None:
    assert configure("rlpd-gx", RULES | {"guard": "none"}).learner.backup == "none"
    assert configure("paper", RULES).learner.backup == "renormalise"
    assert configure("paper", RULES | {"guard": "shield"}).learner.backup == "none"
    assert (
        configure("rlpd-gx", RULES | {"guard": "shield", "backup": "renormalise"}).learner.backup
        == "renormalise"
    )
    assert configure("clone", RULES | {"guard": "shield"}).learner.actor == "clone"


@pytest.mark.parametrize("preset", PRESETS)
def test_without_rules_every_preset_is_unguarded(preset: str) -> None:
    config = configure(preset, {"env": "CartPole-v1"})
    assert (config.run.guard, config.learner.backup) == ("none", "none")
    assert config.learner.actor in ("auto", "raw", "clone")


def test_a_guard_from_outside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A penalty for each correction, in the stored reward only, on top of the Guardian."""
    (tmp_path / "my_guards.py").write_text(
        "from dataclasses import dataclass, replace\n"
        "import numpy as np\n"
        "from rlpd_gx.guards import Guard\n\n"
        "@dataclass(frozen=True)\n"
        "class Penalty(Guard):\n"
        "    cost: float = 7.0\n\n"
        "    def stored(self, transition):\n"
        "        corrected = np.array([v.corrected for v in transition.verdicts])\n"
        "        return replace(transition, reward=transition.reward - np.float32(self.cost) * corrected)\n\n"
        "penalty = Penalty('penalty', mode='enforce', learner={'backup': 'project', 'actor': 'projected'})\n"
        "not_one = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    trainer = _trained(tmp_path / "run", guard="my_guards:penalty")
    line = trainer.online.timeline
    corrected = line.is_step & (line.proposed_action != line.executed_action)
    assert corrected.any()
    assert (line.reward[corrected] < -5).all()
    assert (line.reward[line.is_step & ~corrected] > -5).all()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["guard"] == "my_guards:penalty"
    assert np.isfinite(trainer.last_score)
    with pytest.raises(GxError, match=r"must be an rlpd_gx\.guards\.Guard"):
        guards.find("my_guards:not_one")
    with pytest.raises(GxError, match="there is no guard 'nobody'"):
        guards.find("nobody")
