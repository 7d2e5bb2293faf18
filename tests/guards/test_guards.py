"""What each guard is defined by, and one that a user brings in a file of their own."""

import json
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rlpd_gx import guards
from rlpd_gx.config import PRESETS
from rlpd_gx.deploy.export import Export
from rlpd_gx.errors import GxError
from rlpd_gx.learner.categorical import allowed_actions
from rlpd_gx.loop.configure import configure
from rlpd_gx.loop.resume import Saver, resume
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Trainer
from rlpd_gx.replay.samplers import Span
from rlpd_gx.rules import mask_rule

RULES = {"env": "Probe/LureDiscrete-v0", "rules": "rlpd_gx.envs.probes:lure_mask"}
CONTINUOUS = {"env": "Probe/LureContinuous-v0", "rules": "rlpd_gx.envs.probes:lure_bounds"}
SMALL = {
    "steps": 60, "hidden_sizes": (16,), "batch_size": 16, "learning_starts": 20, "utd": 1, "ensemble_size": 2,
    "evaluation_episodes": 1, "evaluate_every": 0, "device": "cpu",
}  # fmt: skip
PROJECTED = {"backup": "project", "execution": "project"}
RAW = {"backup": "none", "execution": "project"}
DEFINED = {  # execution enforced, settings: SPEC's table of guards
    "guardian": ("enforce", PROJECTED),
    "shield": ("enforce", RAW),
    "mask": ("enforce", RAW | {"execution": "resample"}),
    "replace": ("enforce", RAW),
    "none": ("monitor", RAW),
    "penalty": ("monitor", RAW),
    "lagrangian": ("monitor", RAW | {"actor": "raw"}),
    "classifier": ("monitor", RAW),
    "online": ("monitor", RAW | {"online_ratio": (1.0,)}),
    "offline": ("enforce", PROJECTED | {"online_ratio": (0.0,)}),
    "two-stage": ("enforce", PROJECTED | {"online_ratio": (0.0, 1.0), "online_schedule": "abrupt"}),
    "random": ("enforce", PROJECTED | {"online_ratio": (1.0,)}),
}
ENFORCING = [*(name for name, (mode, _) in DEFINED.items() if mode == "enforce"), "guardian+penalty"]


def _trained(folder: Path, **settings: object) -> Trainer:
    config = configure("rlpd-gx", RULES | SMALL | settings, "test")
    trainer = Trainer(Task(config), RunFolder.create(folder, config, "test"))
    trainer.begin()
    trainer.train(Saver(trainer.folder))
    return trainer


def _offline(folder: Path, *, continuous: bool = False) -> dict[str, str]:
    """Ten episodes of the lure, with a marker in the first reward: 100 + episode."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 10
    np.savez(
        folder / "lure.npz",
        observations=np.tile(np.array([[0.0], [1.0]], np.float32), (count, 1)),
        actions=np.array([[0.0], [0.9]] * count, np.float32) if continuous else np.array([0, 2] * count),
        rewards=np.stack([100 + np.arange(count), np.full(count, 5.0)], axis=1).ravel().astype(np.float32),
        terminals=np.tile(np.array([False, True]), count),
    )
    return {"offline": str(folder / "lure.npz")}


def test_all_guards_are_defined() -> None:
    assert set(guards.NAMES) == set(DEFINED)
    for name, (mode, settings) in DEFINED.items():
        guard = guards.find(name)
        assert (guard.name, guard.mode, guard.settings) == (name, mode, settings)


@pytest.mark.parametrize("name", [*DEFINED, "guardian+penalty"])
@pytest.mark.parametrize("probe", ["discrete", "continuous"])
def test_forbidden_actions_run_only_where_nothing_enforces(tmp_path: Path, name: str, probe: str) -> None:
    """Counted from outside: what the environment executed, against the rule written out here."""
    rules = RULES if probe == "discrete" else CONTINUOUS
    settings = rules | {"guard": name}
    if name in ("offline", "two-stage"):
        settings |= _offline(tmp_path, continuous=probe == "continuous")
    trainer = _trained(tmp_path / name, **settings)
    line = trainer.online.timeline
    steps = line.is_step
    second = line.observation[steps][:, 0] > 0
    executed = line.executed_action[steps]
    forbidden = second & (executed == 2 if probe == "discrete" else executed[:, 0] > np.float32(0.2))
    assert steps.sum() == 60
    assert second.sum() == 30
    assert forbidden.any() == (name not in ENFORCING)
    assert trainer.window.total.forbidden_executed == int(forbidden.sum())
    assert (line.margin[steps] < 0).sum() == forbidden.sum()


def test_replace_draws_uniformly_among_the_allowed_and_projection_does_not(tmp_path: Path) -> None:
    def executed(guard: str) -> np.ndarray:
        task = Task(configure("rlpd-gx", RULES | {"guard": guard}))
        env = task.make_env(audit=tmp_path / f"{guard}.jsonl")
        actions = []
        for _ in range(300):
            env.reset()
            env.step(0)
            actions.append(env.step(2)[-1]["guardian"].action)
        assert env.audit.tally.projected == 300
        audited = [json.loads(line) for line in (tmp_path / f"{guard}.jsonl").read_text().splitlines()]
        recorded = [row["executed"] for row in audited if row.get("event") == "correction"]
        assert recorded == actions  # the audit says what ran
        return np.bincount(actions, minlength=3)

    drawn, nearest = executed("replace"), executed("shield")
    assert drawn[2] == nearest[2] == 0
    assert 100 < drawn[0] < 200  # half of 300, within six standard deviations
    assert sorted(nearest) == [0, 0, 300]


def test_replace_draws_in_a_box_and_asks_a_declared_policy_first() -> None:
    from rlpd_gx.envs.making import make
    from rlpd_gx.envs.probes import lure_bounds
    from rlpd_gx.guards.replace import Replace

    def second_actions(guard: guards.Guard) -> np.ndarray:
        env = guard.begin(0, watched=False).environment(make("Probe/LureContinuous-v0"), lure_bounds)
        actions = []
        for _ in range(200):
            env.reset()
            env.step(np.zeros(1, np.float32))
            actions.append(env.step(np.array([0.9], np.float32))[-1]["guardian"].action[0])
        return np.array(actions)

    drawn = second_actions(guards.find("replace"))
    assert drawn.max() <= np.float32(0.2)
    assert np.abs(np.mean(drawn) - (-0.4)) < 0.15  # uniform in [-1, 0.2]
    careful = Replace("careful", mode="enforce", policy=lambda state: np.array([-0.5], np.float32))
    assert set(second_actions(careful)) == {np.float32(-0.5)}
    reckless = Replace("reckless", mode="enforce", policy=lambda state: np.array([0.9], np.float32))
    assert (second_actions(reckless) == drawn).all()  # what the rules forbid is never executed


def test_replace_draws_joint_actions() -> None:
    space = gym.spaces.MultiDiscrete([3, 2], start=[0, 5])

    class Dials(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 1, (1,), np.float32), space

        def reset(
            self, *, seed: int | None = None, options: object = None
        ) -> tuple[np.ndarray, dict[str, object]]:
            return np.zeros(1, np.float32), {}

        def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
            assert space.contains(action)
            return np.zeros(1, np.float32), 0.0, False, False, {}

    rule = mask_rule(lambda state: (np.array([True, True, False]), np.ones(2, bool)), name="low")
    env = guards.find("replace").begin(0, watched=False).environment(Dials(), rule)
    env.reset()
    drawn = [tuple(env.step(np.array([2, 5]))[-1]["guardian"].action.tolist()) for _ in range(200)]
    assert set(drawn) == {(0, 5), (0, 6), (1, 5), (1, 6)}
    assert min(drawn.count(action) for action in set(drawn)) > 20


@pytest.mark.parametrize("name", ["random", "random+penalty"])
def test_a_run_without_a_policy_is_not_exported(tmp_path: Path, name: str) -> None:
    trainer = _trained(tmp_path / "run", guard=name)
    assert trainer.updates == 0
    with pytest.raises(GxError, match="trains no policy"):
        Export.of_run(trainer.folder.path)


def test_penalty_costs_where_the_rules_correct_and_nowhere_else(tmp_path: Path) -> None:
    for name, cost in (("penalty=7", 7.0), ("guardian+penalty=3", 3.0), ("shield+penalty", 1.0)):
        trainer = _trained(tmp_path / name, guard=name, steps=40)  # half of them random
        line = trainer.online.timeline
        broken = line.is_step & (line.observation[:, 0] > 0) & (line.proposed_action == 2)
        plain = np.where(line.observation[:, 0] > 0, np.array([0.0, 1.0, 5.0])[line.executed_action], 0.0)
        assert broken.any()
        assert np.allclose(line.reward[broken], plain[broken] - cost)
        assert np.allclose(line.reward[line.is_step & ~broken], plain[line.is_step & ~broken])
        given = RULES | SMALL | {"guard": name} | _offline(tmp_path / f"{name} data")
        data = Task(configure("rlpd-gx", given)).offline.timeline
        assert data.reward[data.is_step].tolist()[:2] == [100.0, 5.0 - cost]  # the data did the forbidden
        assert trainer.last_evaluation.episodes[0].score >= 0  # reported returns are the task's own
    assert guards.find("penalty").value == 1
    for wrong in ("penalty=-1", "penalty=much", "guardian=3", "nobody=3", "nobody+penalty"):
        with pytest.raises(GxError, match=r"--guard|there is no guard"):
            guards.find(wrong)


def test_which_rows_the_learner_sees(tmp_path: Path) -> None:
    """Counted from outside: every batch of every run; rewards of 100 and more are offline."""
    seen: dict[str, list[tuple[float, float]]] = {}
    for name in ("offline", "two-stage", "online", "random", "none"):
        config = configure("rlpd-gx", RULES | SMALL | {"guard": name} | _offline(tmp_path / name / "data"))
        trainer = Trainer(Task(config), RunFolder.create(tmp_path / name / "run", config, "test"))
        rows = seen.setdefault(name, [])
        original = trainer.learner.update

        def update(batch, *, progress=0.0, rows=rows, original=original, trainer=trainer):  # type: ignore[no-untyped-def]
            rows.append((trainer.step, float(batch.is_online.mean())))
            assert ((batch.reward >= 100) <= ~batch.is_online).all()
            return original(batch, progress=progress)

        trainer.learner.update = update
        trainer.begin()
        trainer.train(Saver(trainer.folder))
    shares = {name: [share for _, share in rows] for name, rows in seen.items()}
    assert set(shares["offline"]) == {0.0}
    assert len(shares["offline"]) == 60
    assert set(shares["online"]) == {1.0}
    assert min(step for step, _ in seen["online"]) == 20  # learning_starts
    assert shares["random"] == []
    assert {share for step, share in seen["two-stage"] if step < 30} == {0.0}
    assert {share for step, share in seen["two-stage"] if step >= 30} == {1.0}
    assert 0 < np.mean(shares["none"]) < 1


@pytest.mark.parametrize("actor", ["auto", "raw"])
@pytest.mark.parametrize("probe", ["discrete", "continuous"])
def test_without_a_guard_nothing_that_is_learned_depends_on_the_rules(
    tmp_path: Path, probe: str, actor: str
) -> None:
    task = {"discrete": RULES, "continuous": CONTINUOUS}[probe]

    def learned(guard: str, *, others: bool) -> list[np.ndarray]:
        """The parameters after one more update, with the safe sets of other states if asked for."""
        trainer = _trained(tmp_path / f"{guard}-{others}", **task, guard=guard, actor=actor)
        batch = trainer.hybrid.sample(1.0)
        if others:
            turned = {"safe_set": batch.next_safe_set, "next_safe_set": batch.safe_set}
            assert not np.array_equal(batch.safe_set, batch.next_safe_set)
            batch = replace(batch, **turned)
        trainer.learner.update(batch, progress=1.0)
        tensors = [p for group in trainer.learner.parameters.values() for p in group]
        return [t.detach().numpy() for t in (*tensors, trainer.learner.log_temperature)]

    for guard, same in (("none", True), ("guardian", False)):
        pairs = zip(learned(guard, others=False), learned(guard, others=True), strict=True)
        assert all(np.array_equal(one, other) for one, other in pairs) == same, guard


@pytest.mark.parametrize(("guard", "guarded"), [("guardian", True), ("none", False), ("shield", False)])
def test_spans_end_before_forbidden_actions_only_under_a_guarded_backup(guard: str, guarded: bool) -> None:
    task = Task(configure("rlpd-gx", RULES | SMALL | {"guard": guard, "sampler": "span"}, "test"))
    sampler = task.sampler(task.learner())
    assert isinstance(sampler, Span)
    assert sampler.guarded == guarded


@pytest.mark.parametrize("name", ["offline", "two-stage"])
def test_guards_that_learn_from_data_refuse_to_run_without(name: str) -> None:
    with pytest.raises(GxError, match="give --offline"):
        Task(configure("rlpd-gx", RULES | {"guard": name})).dss()


def test_random_proposals_are_uniform_in_training_and_in_evaluation(tmp_path: Path) -> None:
    trainer = _trained(tmp_path / "random", guard="random", steps=400)
    assert trainer.updates == 0
    line = trainer.online.timeline
    counts = np.bincount(line.proposed_action[line.is_step], minlength=3)
    assert counts.min() > 90  # of 133
    seen = np.zeros((600, 1), np.float32)
    greedy = np.bincount(trainer.learner.act(seen, explore=False), minlength=3)
    assert greedy.min() > 140  # of 200: the most likely action of a network would be one


def test_random_proposals_are_uniform_in_the_safe_set_where_a_learner_draws_from_it(tmp_path: Path) -> None:
    trainer = _trained(tmp_path / "random", guard="random", steps=400, execution="resample")
    line = trainer.online.timeline
    rows = np.flatnonzero(line.is_step)[50:]  # the first proposals of a run do not look at the sets
    allowed = allowed_actions(line.safe_set[rows], trainer.task.example.spec, "allowed")
    assert not allowed.all()
    for mask in np.unique(allowed, axis=0):
        counts = np.bincount(line.proposed_action[rows[(allowed == mask).all(axis=1)]], minlength=3)
        assert counts[~mask].sum() == 0
        assert counts[mask].min() > 0.6 * counts[mask].max()


@pytest.mark.parametrize("name", [*DEFINED, "replace+penalty"])
def test_every_guard_resumes_bit_for_bit(tmp_path: Path, name: str) -> None:
    settings = {"guard": name, "evaluate_every": 25, "checkpoint_every": 20, "log_every": 10}
    data = _offline(tmp_path / "data")
    whole = _trained(tmp_path / "whole", **settings, **data)
    config = configure("rlpd-gx", RULES | SMALL | settings | data, "test")
    trainer = Trainer(Task(config), RunFolder.create(tmp_path / "part", config, "test"))
    save = Saver(trainer.folder)
    trainer.begin()
    while trainer.step < 37:
        trainer.train_step()
        trainer.after_step(save)
    trainer.folder.release()
    again, save, _ = resume(tmp_path / "part")
    assert again.step < 37
    again.train(save)
    rows = [(tmp_path / run / "metrics.jsonl").read_text() for run in ("whole", "part")]
    assert rows[0] == rows[1]
    for column, values in whole.online.timeline.columns().items():
        np.testing.assert_array_equal(values, again.online.timeline.columns()[column], err_msg=column)


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
        "penalty = Penalty('penalty', mode='enforce', settings={'backup': 'project', 'actor': 'projected'})\n"
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
