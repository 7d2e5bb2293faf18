"""The Lagrangian guard on a constrained MDP that a linear programme solves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog
from two_temptations import REWARD, TASK

from rlpd_gx import guards
from rlpd_gx.errors import GxError
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.resume import Saver, resume
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer


@pytest.fixture
def task() -> dict[str, Any]:
    return dict(TASK)


def _best(limit: float) -> tuple[float, np.ndarray]:
    """Largest reward per episode with at most `limit` events per step, and P(unsafe) in both states: two variables."""
    solved = linprog(-REWARD[:, 1], A_ub=np.full((1, 2), 0.5), b_ub=[limit], bounds=[(0, 1)] * 2)
    return -solved.fun, solved.x


def _trainer(folder: Path, task: dict[str, Any], **settings: Any) -> Trainer:
    config = configure("rlpd-gx", task | settings, "test")
    trainer = Trainer(Task(config), RunFolder.create(folder, config, "test"))
    trainer.begin()
    return trainer


@pytest.mark.parametrize("limit", [pytest.param(0.25, marks=pytest.mark.long), 0.5])
def test_it_settles_at_the_solution_of_the_linear_programme(
    tmp_path: Path, task: dict[str, Any], limit: float
) -> None:
    trainer = _trainer(tmp_path / "run", task, guard=f"lagrangian={limit}", steps=1_600)
    trainer.train(Saver(trainer.folder))
    line = trainer.online.timeline
    steps = np.flatnonzero(line.is_step)[-600:]
    reward, chances = _best(limit)
    events = line.executed_action[steps] == 1
    found = np.array(
        [events[line.observation[steps][:, 0] < 0].mean(), events[line.observation[steps][:, 0] > 0].mean()]
    )
    assert events.mean() == pytest.approx(limit, abs=0.1)
    assert 2 * line.reward[steps].mean() == pytest.approx(reward, abs=0.12)
    np.testing.assert_allclose(found, chances, atol=0.15)


def test_without_a_price_it_takes_every_temptation(tmp_path: Path, task: dict[str, Any]) -> None:
    """The check can fail: a limit that binds nothing, and the same learner without the guard."""
    for guard in ("lagrangian=1", "none"):
        trainer = _trainer(tmp_path / guard, task, guard=guard, steps=500)
        trainer.train(Saver(trainer.folder))
        line = trainer.online.timeline
        steps = np.flatnonzero(line.is_step)[-150:]
        assert (line.executed_action[steps] == 1).mean() > 0.9


def test_the_cost_is_pessimistic_over_its_critics(tmp_path: Path, task: dict[str, Any]) -> None:
    import torch

    trainer = _trainer(tmp_path / "run", task, guard="lagrangian", steps=100)
    costs = trainer.guard.run.costs
    own = costs.learner
    seen = torch.tensor([[-1.0], [1.0]])
    each = -own.critic["ensemble"](own.encode(seen))  # [critics, 2, 2] estimates of the cost
    np.testing.assert_allclose(-own._for_actor(-each).detach().numpy(), each.amax(dim=0).detach().numpy())
    assert each.std(dim=0).min() > 0


def test_continuous_actions_pay_the_price_too(tmp_path: Path, task: dict[str, Any]) -> None:
    settings = task | {
        "rules": "two_temptations:bound", "env_kwargs": {"continuous": True}, "temperature": 0.05, "steps": 700,
    }  # fmt: skip
    shares = {}
    for guard in ("lagrangian=0.05", "none"):
        trainer = _trainer(tmp_path / guard, settings, guard=guard)
        trainer.train(Saver(trainer.folder))
        line = trainer.online.timeline
        shares[guard] = (line.executed_action[np.flatnonzero(line.is_step)[-200:]] > 0).mean()
    assert shares["lagrangian=0.05"] < 0.25
    assert shares["none"] > 0.75


def test_where_nothing_reports_events_a_forbidden_action_costs(
    tmp_path: Path, task: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("two_temptations.unsafe_event")
    trainer = _trainer(tmp_path / "run", task, guard="lagrangian", steps=80)
    trainer.train(Saver(trainer.folder))
    line = trainer.online.timeline
    steps = line.is_step
    assert (line.unsafe_event[steps] == (line.executed_action[steps] == 1)).all()
    assert line.unsafe_event.any()


def test_atari_costs_at_the_dying_flag_and_not_at_the_counter(tmp_path: Path) -> None:
    settings = {
        "env": "Atari/Kangaroo-ram", "rules": "rlpd_gx.envs.atari:RamRules", "guard": "lagrangian", "steps": 600,
        "learning_starts": 600, "hidden_sizes": (8,), "evaluation_episodes": 1, "evaluate_every": 0, "device": "cpu",
        "env_kwargs": {"max_steps": 400},
    }  # fmt: skip
    trainer = _trainer(tmp_path / "run", settings)
    counted, flags = 0, []
    game = trainer.environments.members[0].env.unwrapped.game
    while trainer.step < 600:
        trainer.train_step()
        ram = trainer.online.timeline.observation
        counted = trainer.window.total.unsafe_events
    line = trainer.online.timeline
    steps = np.flatnonzero(line.is_step)
    assert counted > 0
    dying = np.array([game.is_dying(ram[row + 1]) for row in steps])
    before = np.array([game.is_dying(ram[row]) for row in steps])
    flags = dying & ~before
    assert flags.any()
    assert (line.unsafe_event[steps] == flags).all()


def test_it_resumes_bit_for_bit(tmp_path: Path, task: dict[str, Any]) -> None:
    settings = {"guard": "lagrangian=0.1", "steps": 160, "checkpoint_every": 70}
    whole = _trainer(tmp_path / "whole", task, **settings)
    whole.train(Saver(whole.folder))
    part = _trainer(tmp_path / "part", task, **settings)
    save = Saver(part.folder)
    while part.step < 111:
        part.train_step()
        part.after_step(save)
    part.folder.release()
    again, save, _ = resume(tmp_path / "part")
    assert again.step == 70
    assert again.guard.run.costs.multiplier > 0
    again.train(save)
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "part/metrics.jsonl").read_text()
    assert whole.guard.run.costs.multiplier == again.guard.run.costs.multiplier


def test_it_needs_an_actor(task: dict[str, Any]) -> None:
    with pytest.raises(GxError, match="leave out --actor"):
        Task(configure("rlpd-gx", task | {"guard": "lagrangian", "actor": "auto"})).learner()
    assert guards.find("lagrangian=0.02").value == 0.02
