"""The classifier guard: its labels, its threshold, what it vetoes, and how it is measured."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from two_temptations import TASK, TwoTemptations, rule

import rlpd_gx as gx
from rlpd_gx.guards._risk import labels
from rlpd_gx.guards.classifier import GUARD
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.measure import measure_run
from rlpd_gx.loop.resume import Saver, resume
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer
from rlpd_gx.metrics.classification import classification, threshold_for

ONE_STEP = TASK | {"env_kwargs": {"length": 1}, "utd": 1, "normalise": False}


def _trainer(folder: Path, **settings: Any) -> Trainer:
    config = configure("rlpd-gx", ONE_STEP | settings, "test")
    trainer = Trainer(Task(config), RunFolder.create(folder, config, "test"))
    trainer.begin()
    return trainer


def test_precision_recall_and_calibration_by_hand() -> None:
    risk, event = np.array([0.9, 0.9, 0.2, 0.6]), np.array([True, True, False, False])
    found = classification(risk, event, threshold=0.5)
    assert (found["precision"], found["recall"]) == (2 / 3, 1.0)
    assert found["brier"] == pytest.approx((0.01 + 0.01 + 0.04 + 0.36) / 4)
    assert found["calibration_error"] == pytest.approx((0.2 + 0.2 + 0.6) / 4)
    generator = np.random.default_rng(0)
    honest = generator.random(20_000)
    happened = generator.random(20_000) < honest
    assert classification(honest, happened, 0.5)["calibration_error"] < 0.02
    bold = np.where(honest > 0.5, 0.99, 0.01)  # the same order, and overconfident
    assert classification(bold, happened, 0.5)["calibration_error"] > 0.15


def test_the_threshold_misses_the_share_that_was_asked_for() -> None:
    risk, event = np.linspace(0, 1, 101), np.ones(101, bool)
    assert threshold_for(risk, event, 0.1) == pytest.approx(0.1)
    assert threshold_for(risk, event, 0.0) == 0
    assert (risk >= threshold_for(risk, event, 0.25)).mean() >= 0.75
    assert threshold_for(np.array([0.2, 0.9]), np.array([False, True]), 0.1) == 0.9  # only events count


def test_labels_look_ahead_within_the_episode(tmp_path: Path) -> None:
    """Rows: a step of length 1 each; the newest episode still runs."""
    trainer = _trainer(tmp_path / "run", guard="none", env_kwargs={"length": 2}, steps=7, learning_starts=100)
    while trainer.step < 7:
        trainer.train_step()
    line, extent = trainer.online.timeline, trainer.online.extent
    rows = np.flatnonzero(line.is_step)
    line.unsafe_event[:] = False
    line.unsafe_event[rows[3]] = True  # the second step of the second episode
    event, known = labels(extent, rows, 2, watched=True)
    assert event.tolist() == [False, False, True, True, False, False, False]
    assert known.tolist() == [True] * 6 + [False]
    assert labels(extent, rows, 1, watched=True)[0].tolist() == [
        False,
        False,
        False,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("continuous", [False, True])
def test_it_learns_to_veto_what_the_learner_wants(tmp_path: Path, continuous: bool) -> None:
    settings: dict[str, Any] = {"env_kwargs": {"length": 1, "continuous": continuous}, "steps": 400}
    if continuous:
        settings |= {"rules": "two_temptations:bound", "temperature": 0.1}
    wanted_action = np.array([0.8], np.float32) if continuous else 1
    risky, wanted = {}, {}
    for guard in ("classifier", "none"):
        trainer = _trainer(tmp_path / guard, guard=guard, **settings)
        trainer.train(Saver(trainer.folder))
        line = trainer.online.timeline
        last = np.flatnonzero(line.is_step)[-100:]
        risky[guard] = (line.executed_action[last] > 0).mean()
        wanted[guard] = (line.proposed_action[last] > 0).mean()
        assert trainer.corrects == trainer.result()["corrects"] == (guard == "classifier")
        if guard == "classifier":
            quality = trainer.guard.run.quality
            assert quality["recall"] >= 0.9
            assert quality["precision"] > 0.8
            assert quality["calibration_error"] < 0.2
            changed = line.executed_action[line.is_step] != line.proposed_action[line.is_step]
            assert trainer.window.total.corrections == changed.sum() > 0
            assert trainer.window.total.forbidden_executed == int(
                (line.executed_action[line.is_step] > 0).sum()
            )
    assert risky["none"] > 0.8
    assert risky["classifier"] < 0.2
    assert wanted["classifier"] > 0.5  # vetoed, not unlearned
    # what it has learned is there when the run is evaluated later, by another policy too
    later = measure_run(
        tmp_path / "classifier", ["dependence"], policy=lambda observation: wanted_action, episodes=20
    )
    assert later["dependence"]["unsafe_event_rate_with_guard"] == 0
    assert later["dependence"]["unsafe_event_rate_without_guard"] == 1
    rows = [json.loads(row) for row in (tmp_path / "classifier/metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["kind"] == "train" and row.get("classifier_recall") is not None]
    assert {"classifier_precision", "classifier_calibration_error", "classifier_threshold"} <= set(
        trained[-1]
    )


class Table:
    """Fixed risks of the two actions."""

    def __init__(self, *risk: float) -> None:
        self.risk = np.array(risk)

    def nearby(self, proposed: Any) -> np.ndarray:
        return np.array([proposed, 0, 1])

    def of(self, observation: Any, actions: np.ndarray) -> np.ndarray:
        return self.risk[actions]


@pytest.mark.parametrize(
    ("risk", "ran"),
    [((0.9, 0.1), [1, 1]), ((0.1, 0.9), [0, 0]), ((0.1, 0.1), [0, 1]), ((0.8, 0.9), [0, 0])],
)
def test_a_veto_is_a_correction_and_nothing_else_is(tmp_path: Path, risk: Any, ran: list[int]) -> None:
    """Action 0 is allowed by the rules, action 1 is not; both are proposed."""
    guard = GUARD.begin(0, watched=True)
    guard.run.risk, guard.run.threshold = Table(*risk), 0.5  # type: ignore[assignment]
    env = guard.environment(TwoTemptations(), rule, audit=tmp_path / "audit.jsonl")
    env.reset(seed=0)
    verdicts = [env.step(proposed)[-1]["guardian"] for proposed in (0, 1)]
    assert [int(verdict.action) for verdict in verdicts] == ran
    vetoed = [proposed != executed for proposed, executed in enumerate(ran)]
    assert [verdict.corrected for verdict in verdicts] == vetoed
    tally = env.audit.tally
    assert (tally.corrections, tally.projected) == (sum(vetoed), sum(vetoed))
    assert (tally.forbidden_proposals, tally.forbidden_executed) == (1, sum(ran))
    _, events = gx.Audit.read(tmp_path / "audit.jsonl")
    assert [event["executed"] for event in events] == [a for a, veto in zip(ran, vetoed, strict=True) if veto]


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    settings = {"guard": "classifier=0.2", "steps": 260, "checkpoint_every": 180, "evaluate_every": 50}
    whole = _trainer(tmp_path / "whole", **settings)
    whole.train(Saver(whole.folder))
    part = _trainer(tmp_path / "part", **settings)
    save = Saver(part.folder)
    while part.step < 221:
        part.train_step()
        part.after_step(save)
    part.folder.release()
    again, save, _ = resume(tmp_path / "part")
    assert again.step == 180
    assert np.isfinite(again.guard.run.threshold)
    again.train(save)
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "part/metrics.jsonl").read_text()
