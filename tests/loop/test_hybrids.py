"""Presets of related hybrids, each tested for what defines it."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlpd_gx.deploy.export import Export, propose
from rlpd_gx.errors import GxError
from rlpd_gx.learner.categorical import log_policy
from rlpd_gx.learner.inspection import values_and_targets, values_at
from rlpd_gx.learner.q_learner import above, returns_to_go
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.resume import Saver
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer

SMALL = {
    "env": "Probe/LureDiscrete-v0", "rules": "rlpd_gx.envs.probes:lure_mask", "steps": 60, "hidden_sizes": (32,),
    "batch_size": 16, "learning_starts": 20, "utd": 1, "evaluation_episodes": 1, "evaluate_every": 0, "device": "cpu",
    "learning_rate": 1e-2, "tau": 0.1, "normalise": False,
}  # fmt: skip
SEEN = np.array([[0.0], [1.0]], np.float32)


def _data(folder: Path, rewards: tuple[float, float], every: int) -> str:
    """Episodes of two steps in which action 2 was never taken; the second step pays by its action.

    It is action 1 in one episode of `every`, 0 in the others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = 40
    second = (np.arange(count) % every == every - 1).astype(int)
    np.savez(
        folder / "data.npz",
        observations=np.tile(SEEN, (count, 1)),
        actions=np.stack([np.zeros(count, int), second], axis=1).ravel(),
        rewards=np.stack([np.zeros(count), np.array(rewards)[second]], axis=1).ravel().astype(np.float32),
        terminals=np.tile(np.array([False, True]), count),
    )
    return str(folder / "data.npz")


def _trainer(folder: Path, preset: str, **settings: Any) -> tuple[Trainer, list[tuple[int, int, float]]]:
    """A trainer and what its learner will be given: step, warm updates before, share of online rows."""
    data = _data(folder / "data", settings.pop("rewards", (1.0, 1.0)), settings.pop("every", 2))
    given = SMALL | {"offline": data} | settings
    config = configure(preset, given, "test")
    trainer = Trainer(Task(config), RunFolder.create(folder / "run", config, "test"))
    rows: list[tuple[int, int, float]] = []
    original = trainer.learner.update

    def update(batch: Any, *, progress: float = 0.0) -> dict[str, float]:
        rows.append((trainer.step, trainer.warm_updates, float(batch.is_online.mean())))
        return original(batch, progress=progress)

    trainer.learner.update = update  # type: ignore[method-assign]
    trainer.begin()
    return trainer, rows


def _values(trainer: Trainer) -> np.ndarray:
    """Mean Q [state, action]."""
    each = [values_at(trainer.learner, SEEN, np.full(2, action)).mean(axis=0) for action in range(3)]
    return np.stack(each, axis=1)


def test_hy_q_is_q_learning_on_half_of_each(tmp_path: Path) -> None:
    trainer, rows = _trainer(tmp_path, "hy-q")
    trainer.train(Saver(trainer.folder))
    assert {share for step, _, share in rows if step > 10} == {0.5}
    learner = trainer.learner
    assert (learner.config.ood_weight, learner.config.clone_weight_at(0.0)) == (0, 0)
    batch = trainer.hybrid.sample(0.5)
    _, target = values_and_targets(learner, batch)
    with torch.no_grad():
        following = learner.target["ensemble"](torch.as_tensor(batch.next_observation[0]))[0].numpy()
    greedy = batch.reward[0] + batch.discount[0] * following.max(axis=1)
    np.testing.assert_allclose(target, greedy, atol=0.02)  # alpha is 0.01: the maximum, not a mean
    assert np.abs(batch.reward[0] + batch.discount[0] * following.mean(axis=1) - greedy).max() > 0.03


def test_cql_lowers_what_the_data_never_did(tmp_path: Path) -> None:
    gaps = {}
    for name, settings in {"cql": {}, "plain": {"ood_penalty": 0.0}}.items():
        trainer, rows = _trainer(tmp_path / name, "cql", **settings)
        trainer.train(Saver(trainer.folder))
        assert {share for *_, share in rows} == {0.0}  # offline data alone
        values = _values(trainer)
        gaps[name] = float(values[1, :2].mean() - values[1, 2])
    assert gaps["cql"] > gaps["plain"] + 1


def test_cal_ql_does_not_push_below_the_return_of_the_data(tmp_path: Path) -> None:
    found = {}
    for name, penalty in {"cal-ql": "calibrated", "cql": 5.0}.items():
        settings = {"warm_start_updates": 100, "steps": 30, "ood_penalty": penalty}
        trainer, rows = _trainer(tmp_path / name, "cal-ql", **settings)
        trainer.warm_start(lambda trainer: None)
        assert {share for *_, share in rows} == {0.0}
        found[name] = _values(trainer)[1, 2]
    assert found["cql"] < found["cal-ql"] - 1
    trainer.train(Saver(trainer.folder))
    assert {share for step, _, share in rows if step > 10} == {0.5}  # then half of each


def test_calibrated_values_below_the_return_of_the_data_have_no_gradient(tmp_path: Path) -> None:
    trainer, _ = _trainer(tmp_path, "cal-ql", warm_start_updates=1)
    learner = trainer.learner
    batch = learner._minibatch(trainer.hybrid.sample(0.0), 0)
    returns = learner.data_returns[batch.row]
    assert set(np.round(returns.tolist(), 3)) == {0.99, 1.0}  # one step before the reward, and at it
    unseen = torch.tensor([0.5, 1.5, -torch.inf]).expand(2, 16, 3).clone().requires_grad_()
    counted = above(unseen, learner._return_of_data(batch))
    assert torch.equal(counted[..., 0], returns.expand(2, 16))
    assert torch.equal(counted[..., 1], unseen[..., 1])
    assert counted[..., 2].isneginf().all()  # the executed action stays out
    counted[..., :2].sum().backward()
    assert unseen.grad[0, 0].tolist() == [0.0, 1.0, 0.0]
    learner.data_returns = None
    assert above(unseen, learner._return_of_data(batch)) is unseen  # plain CQL


def test_returns_to_go_by_hand() -> None:
    reward, is_step = np.array([1.0, 2.0, 9.0, 4.0, 9.0]), np.array([True, True, False, True, False])
    assert returns_to_go(reward, is_step, 0.5).tolist() == [2.0, 2.0, 0.0, 4.0, 0.0]


def test_bcq_stays_with_the_actions_of_the_data(tmp_path: Path) -> None:
    """Every action of the data costs, so that one never tried looks best to a learner that is not constrained."""
    chosen = {}
    for name, settings in {"bcq": {}, "free": {"support": 0.0}}.items():
        trainer, rows = _trainer(tmp_path / name, "bcq", rewards=(-5.0, -8.0), steps=100, **settings)
        trainer.train(Saver(trainer.folder))
        assert {share for *_, share in rows} == {0.0}
        chosen[name] = int(trainer.learner.act(SEEN, explore=False)[1])
    assert chosen == {"bcq": 0, "free": 2}


def test_bcq_leaves_out_rare_actions_by_its_threshold(tmp_path: Path) -> None:
    """Action 1 is best but done in one episode of eight: G / max G is 1/7, between the two thresholds."""
    supported, chosen = {}, {}
    for support in (0.3, 0.05):
        trainer, _ = _trainer(
            tmp_path / str(support), "bcq", rewards=(-1.0, 5.0), every=8, steps=150, support=support
        )
        trainer.train(Saver(trainer.folder))
        with torch.no_grad():
            found = trainer.learner.policy.supports(trainer.learner.encode(torch.as_tensor(SEEN)))
        supported[support] = found[1].tolist()
        chosen[support] = int(trainer.learner.act(SEEN, explore=False)[1])
    assert supported == {0.3: [True, False, False], 0.05: [True, True, False]}
    assert chosen == {0.3: 0, 0.05: 1}


def test_the_backup_of_bcq_leaves_out_what_the_data_does_not_support(tmp_path: Path) -> None:
    trainer, _ = _trainer(tmp_path, "bcq", rewards=(-5.0, -8.0), steps=100)
    trainer.train(Saver(trainer.folder))
    learner, batch = trainer.learner, trainer.hybrid.sample(0.0)
    _, target = values_and_targets(learner, batch)
    following = torch.as_tensor(batch.next_observation[0])
    with torch.no_grad():
        q = learner.target["ensemble"](following).amin(dim=0)
        supports = learner.policy.supports(learner.encode(following))
    constrained, free = (v.amax(dim=1).numpy() for v in (q.masked_fill(~supports, -torch.inf), q))
    reward, discount = batch.reward[0], batch.discount[0]
    # near greedy: alpha is 0.01
    np.testing.assert_allclose(target, reward + discount * constrained, atol=0.1)
    assert np.abs(target - (reward + discount * free)).max() > 1


def test_a_guard_narrows_the_support_and_an_unsupported_action_runs_only_where_nothing_else_may(
    tmp_path: Path,
) -> None:
    trainer, _ = _trainer(tmp_path, "bcq", steps=60, guard="mask", backup="renormalise")
    trainer.train(Saver(trainer.folder))
    policy, learner = trainer.learner.policy, trainer.learner
    features = learner.encode(torch.as_tensor(SEEN))
    with torch.no_grad():
        assert policy.supports(features)[1].tolist() == [True, True, False]
        logits = policy.logits(features)[1:]
    for allowed, probability in (([True, False, True], [1, 0, 0]), ([False, False, True], [0, 0, 1])):
        found = log_policy(logits, torch.tensor([allowed])).exp()[0]
        assert found.tolist() == pytest.approx(probability)


def test_bcq_resumes_with_its_clone(tmp_path: Path) -> None:
    trainer, _ = _trainer(tmp_path, "bcq", steps=60)
    trainer.train(Saver(trainer.folder))
    batch, again = trainer.hybrid.sample(0.0), trainer.task.learner()
    again.load_state(copy.deepcopy(trainer.learner.state()))
    assert again.update(batch) == trainer.learner.update(batch)


def test_an_exported_bcq_policy_keeps_its_support(tmp_path: Path) -> None:
    trainer, _ = _trainer(tmp_path, "bcq", rewards=(-5.0, -8.0), steps=100)
    trainer.train(Saver(trainer.folder))
    export = Export.find(tmp_path / "run")
    assert [int(propose(export, export.network(), seen)) for seen in SEEN] == trainer.learner.act(
        SEEN, explore=False
    ).tolist()


def test_bcq_is_for_discrete_actions_and_needs_data() -> None:
    with pytest.raises(GxError, match="needs discrete actions"):
        Task(configure("bcq", {"env": "Pendulum-v1", "offline": "x.npz", "device": "cpu"})).learner()
    with pytest.raises(GxError, match="and there is none: give --offline"):
        Task(configure("rlpd-gx", SMALL | {"support": 0.3})).learner()
    with pytest.raises(GxError, match="give actor=auto"):
        configure("bcq", {"actor": "raw"})


def test_wsrl_starts_warm_collects_under_guard_then_forgets_the_data(tmp_path: Path) -> None:
    trainer, rows = _trainer(tmp_path, "wsrl", warm_start_updates=40)
    acted: list[int] = []
    original = trainer.learner.explore

    def explore(*args: Any, **options: Any) -> np.ndarray:
        acted.append(trainer.step)
        return original(*args, **options)

    trainer.learner.explore = explore  # type: ignore[method-assign]
    trainer.train(Saver(trainer.folder))
    warm, online = [row for row in rows if row[1] < 40], [row for row in rows if row[1] >= 40]
    assert len(warm) == 40
    assert {share for *_, share in warm} == {0.0}
    assert min(step for step, *_ in online) == 20  # no update while the warm-up collects
    assert {share for *_, share in online} == {1.0}
    assert set(range(20)) <= set(acted)  # the pretrained policy acts in the warm-up, not a random one
    line = trainer.online.timeline
    forbidden = line.is_step & (line.observation[:, 0] > 0) & (line.executed_action == 2)
    assert not forbidden.any()
    assert trainer.task.config.run.guard == "guardian"


@pytest.mark.parametrize("preset", ["cql", "bcq"])
def test_what_learns_from_data_alone_refuses_to_run_without(preset: str) -> None:
    with pytest.raises(GxError, match="give --offline"):
        Task(configure(preset, SMALL)).dss()
