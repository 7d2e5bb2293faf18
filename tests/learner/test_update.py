"""What an update does besides its targets: how often the actor learns, what cloning weighs, what networks see."""

import copy
from dataclasses import fields, replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from batches import batch
from bench.timing import interleaved, ratio
from bench.updates import SIZES, batch_of, learner_of

from rlpd_gx.errors import GxError
from rlpd_gx.learner import Diverged, LearnerConfig, SacContinuous, SacDiscrete, SoftDiscrete
from rlpd_gx.learner.adam import Adam
from rlpd_gx.trees import leaves
from rlpd_gx.types import Batch, SpanSteps

OBSERVATION = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
CONFIG = {"backup": "none", "actor": "raw", "ensemble_size": 2, "hidden_sizes": (16,), "policy_tau": 1.0}


def _learner(**settings: Any) -> SacContinuous:
    config = LearnerConfig(**(CONFIG | settings))
    return SacContinuous(config, OBSERVATION, gym.spaces.Box(-1, 1, (2,), np.float32))


def _block(updates: int, *, online: bool = True) -> Any:
    random, count = np.random.default_rng(0), updates * 8
    observation, following = random.normal(size=(2, count, 3)).astype(np.float32)
    action = random.uniform(-1, 1, (count, 2)).astype(np.float32)
    made = batch(observation, action, np.ones(count), following, np.full(count, 0.9), updates=updates)
    made.is_online[...] = online
    return made


@pytest.mark.parametrize("updates", [1, 6])
def test_a_block_updates_the_critics_each_time_and_the_actor_once(updates: int) -> None:
    learner = _learner()
    learner.update(_block(updates))
    steps = {name: int(optimiser.steps[0]) for name, optimiser in learner.optimisers.items()}
    assert steps == {"critic": updates, "actor": 1, "temperature": 1}


@pytest.mark.parametrize("first", [0.01, 10.0])
def test_the_entropy_of_a_soft_policy_follows_its_target(first: float) -> None:
    """From a policy that is far too certain, or far too random, while the values still grow."""
    config = LearnerConfig(**(CONFIG | {"actor": "auto", "target_entropy": 0.5, "temperature": first}))
    learner = SoftDiscrete(config, OBSERVATION, gym.spaces.Discrete(4))
    made = _block(1)
    action = np.random.default_rng(0).integers(4, size=made.reward.shape)
    made = replace(made, executed_action=action, reward=action.astype(np.float32))
    for _ in range(2_500):
        entropy = learner.update(made)["entropy"]
    assert entropy == pytest.approx(0.5 * np.log(4), abs=0.05)


def test_cloning_counts_offline_rows_only_and_is_over_when_it_should_be() -> None:
    def loss(progress: float, online: bool, weight: float, until: float = 0.5) -> float:
        learner = _learner(clone_weight=(weight, until))
        return learner.update(_block(1, online=online), progress=progress)["actor_loss"]

    plain = loss(0.0, False, 0.0)
    assert loss(0.0, False, 1.0) != plain
    assert loss(0.25, False, 1.0) != loss(0.0, False, 1.0)
    assert loss(0.5, False, 1.0) == loss(0.9, False, 1.0) == plain
    assert loss(0.0, True, 1.0) == plain
    assert loss(1.0, False, 1.0, until=2.0) == pytest.approx(loss(0.0, False, 0.5))


def test_calibrated_observations_have_mean_0_and_spread_1() -> None:
    learner = _learner(normalise=True)
    random = np.random.default_rng(0)
    rows = (random.normal(size=(500, 3)) * [30, 0.01, 0] + [5, -2, 7]).astype(np.float32)
    learner.calibrate([rows[:200], rows[200:]])
    seen = learner.encode(torch.as_tensor(rows))
    assert torch.allclose(seen.mean(dim=0), torch.zeros(3), atol=1e-3)
    assert torch.allclose(seen[:, :2].std(dim=0), torch.ones(2), atol=1e-3)
    assert torch.equal(learner.target["encoder"](torch.as_tensor(rows)), seen)
    assert learner.encode(torch.full((1, 3), 1e9)).max() <= 10  # what was never seen does not drown all else


def test_calibration_survives_a_checkpoint_and_an_export() -> None:
    learner = _learner(normalise=True)
    rows = np.random.default_rng(0).normal(3, 5, (100, 3)).astype(np.float32)
    learner.calibrate([rows])
    again, policy = _learner(normalise=True), _learner(normalise=True)
    again.load_state(learner.state())
    policy.policy.load_state_dict(learner.policy.state_dict())
    for other in (again, policy):
        assert torch.equal(other.encode(torch.as_tensor(rows)), learner.encode(torch.as_tensor(rows)))
        assert np.array_equal(other.act(rows, explore=False), learner.act(rows, explore=False))


def test_dict_observations_are_calibrated_in_one_row() -> None:
    space = gym.spaces.Dict({"b": gym.spaces.Box(0, 255, (2,), np.uint8), "a": gym.spaces.Box(-9, 9, (1,))})
    learner = SacDiscrete(LearnerConfig(**CONFIG), space, gym.spaces.Discrete(2))
    random = np.random.default_rng(0)
    rows = {
        "a": random.normal(4, 2, (300, 1)).astype(np.float32),
        "b": random.integers(0, 99, (300, 2), np.uint8),
    }
    learner.calibrate([rows])
    seen = learner.encode({key: torch.as_tensor(part) for key, part in rows.items()})
    assert torch.allclose(seen.mean(dim=0), torch.zeros(3), atol=1e-3)
    assert torch.allclose(seen.std(dim=0), torch.ones(3), atol=1e-3)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_compiled_critics_learn_the_same() -> None:
    plain, compiled = _learner(), _learner(compile=True)
    for _ in range(3):
        metrics = [learner.update(_block(2)) for learner in (plain, compiled)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4, abs=1e-5)
    assert plain.state()["critic"].keys() == compiled.state()["critic"].keys()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_soft_learner_learns_the_same() -> None:
    settings = CONFIG | {"actor": "auto", "clone_weight": (0.5,)}
    learners = [
        SoftDiscrete(LearnerConfig(**settings, compile=chosen), OBSERVATION, gym.spaces.Discrete(4))
        for chosen in (False, True)
    ]
    data = _discrete_block(2)
    data.is_online[:, ::2] = False
    for _ in range(3):
        metrics = [learner.update(data) for learner in learners]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4, abs=1e-5)
    for one, other in zip(*(learner.policy.parameters() for learner in learners), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def _discrete_block(updates: int) -> Any:
    made = _block(updates)
    action = np.random.default_rng(1).integers(4, size=made.reward.shape)
    return replace(made, executed_action=action, proposed_action=action)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("updates", [0, 1])
@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("poisoned", [np.nan, np.inf])
def test_of_an_update_that_is_not_finite_nothing_is_applied(
    poisoned: float, compile: bool, updates: int
) -> None:
    config = LearnerConfig(**CONFIG | {"actor": "auto", "compile": compile})
    learner = SoftDiscrete(config, OBSERVATION, gym.spaces.Discrete(4))
    for _ in range(updates):
        learner.update(_discrete_block(1))
    before = copy.deepcopy(learner.state())
    data = _discrete_block(1)
    data.reward[0, 3] = poisoned
    data.observation[0, 3] = poisoned
    with pytest.raises(Diverged, match="minibatch 0"):
        learner.update(data)
    for name in ("policy", "target"):
        assert all(torch.equal(v, before[name][k]) for k, v in learner.state()[name].items())
    moments = learner.state()["optimisers"]
    assert all(torch.equal(v, before["optimisers"][o][i][k])
               for o, m in moments.items() for i, row in m.items() for k, v in row.items())  # fmt: skip


def test_our_adam_is_that_of_torch() -> None:
    random = torch.Generator().manual_seed(0)
    ours = [
        torch.randn(5, 3, generator=random).requires_grad_(),
        torch.randn((), generator=random).requires_grad_(),
    ]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    adam, reference = Adam("ours", ours, 1e-2), torch.optim.Adam(theirs, 1e-2)
    for step in range(20):
        adam.step((ours[0] * ours[1] - step).square().sum(), 0)
        reference.zero_grad()
        (theirs[0] * theirs[1] - step).square().sum().backward()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_without_a_compiler_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(GxError, match="C\\+\\+ compiler"):
        _learner(compile=True)


def test_categories_are_one_hot_and_numbers_keep_their_unit() -> None:
    space = gym.spaces.Dict(
        {
            "a/gear": gym.spaces.Discrete(3, start=1),
            "b": gym.spaces.MultiDiscrete([2, 3]),
            "c": gym.spaces.MultiBinary(2),
            "d": gym.spaces.Box(0, 255, (2,), np.uint8),
            "e": gym.spaces.Box(-np.inf, np.inf, (1,), np.float32),
        }
    )
    learner = SacDiscrete(LearnerConfig(**CONFIG), space, gym.spaces.Discrete(2))
    seen = learner.encode(
        {
            "a/gear": torch.tensor([3]), "b": torch.tensor([[1, 0]]), "c": torch.tensor([[0, 1]]),
            "d": torch.tensor([[51, 255]]), "e": torch.tensor([[7.5]]),
        }
    )  # fmt: skip
    expected = [0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 0.2, 1, 7.5]
    assert torch.allclose(seen, torch.tensor([expected]))
    assert seen.shape[1] == gym.spaces.flatdim(space)


def test_a_space_without_numbers_is_refused() -> None:
    with pytest.raises(GxError, match="reads numbers, categories"):
        SacDiscrete(LearnerConfig(**CONFIG), gym.spaces.Text(5), gym.spaces.Discrete(2))


def test_a_minibatch_is_the_same_batch_without_its_first_axis() -> None:
    shape, columns = (3, 4), {}
    for number, field in enumerate(fields(Batch)):
        columns[field.name] = 1000 * number + np.arange(12).reshape(shape)
    columns["observation"] = {"a": np.arange(24).reshape(*shape, 2), "b": np.arange(12).reshape(shape)}
    inside = {f.name: 100 * n + np.arange(24).reshape(*shape, 2) for n, f in enumerate(fields(SpanSteps))}
    whole = Batch(**columns | {"span_steps": SpanSteps(**inside)})
    part = whole.minibatch(2)
    for name, column in whole.arrays().items():
        for ours, all_rows in zip(leaves(getattr(part, name)), leaves(column), strict=True):
            assert np.array_equal(ours, all_rows[2])
            assert np.shares_memory(ours, all_rows)
    assert part.span_steps is not None
    for name, column in inside.items():
        assert np.array_equal(getattr(part.span_steps, name), column[2])
    assert _block(2).minibatch(1).span_steps is None


def test_of_a_minibatch_everything_but_safe_sets_is_a_tensor() -> None:
    minibatch = _learner()._minibatch(_block(2), 1)
    kinds = {name: type(value) for name, value in minibatch.arrays().items()}
    assert {name for name, kind in kinds.items() if kind is np.ndarray} == {"safe_set", "next_safe_set"}
    assert {kind for kind in kinds.values() if kind is not np.ndarray} == {torch.Tensor}


def test_a_small_update_without_an_actor_is_faster_than_one_with():
    """A ratio of interleaved runs, below what is measured (bench/learner.py), so that noise does not decide."""
    size, calls = SIZES["small"], {}
    for actor in ("auto", "raw"):
        learner, block = learner_of(size, actor=actor), batch_of(size)
        calls[actor] = lambda learner=learner, block=block: [learner.update(block) for _ in range(5)]
    seconds = interleaved(calls, rounds=7)
    assert ratio(seconds["raw"], seconds["auto"]) > 1.1
