"""The policy that is evaluated and exported is a running average of the one that learns."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from batches import batch

from rlpd_gx.errors import GxError
from rlpd_gx.learner import LearnerConfig, QLearner, SacContinuous, SoftDiscrete
from rlpd_gx.learner.policy import restored

RATE, UPDATES = 0.25, 9
SEEN = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS = {"continuous": gym.spaces.Box(-1, 1, (2,), np.float32), "discrete": gym.spaces.Discrete(4)}
kinds = pytest.mark.parametrize("kind", ["continuous", "discrete"])


def _learner(kind: str, rate: float = RATE) -> QLearner[Any]:
    config = LearnerConfig(
        backup="none", ensemble_size=2, hidden_sizes=(16,), policy_tau=rate, learning_rate=0.01
    )
    make: Any = SacContinuous if kind == "continuous" else SoftDiscrete
    return make(config, SEEN, ACTIONS[kind])


def _learn(learner: QLearner[Any], kind: str, seed: int = 0) -> None:
    random, count = np.random.default_rng(seed), 16
    observation, following = random.normal(size=(2, count, 3)).astype(np.float32)
    action = random.integers(4, size=count)
    if kind == "continuous":
        action = random.uniform(-1, 1, (count, 2)).astype(np.float32)
    learner.update(batch(observation, action, random.normal(size=count), following, np.full(count, 0.9)))


def _numbers(policy: Any) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in policy.parameters()])


@kinds
def test_it_is_the_mean_at_first_and_then_moves_at_its_rate(kind: str) -> None:
    learner = _learner(kind)
    expected = torch.zeros(())
    for update in range(1, UPDATES + 1):
        _learn(learner, kind, update)
        rate = max(RATE, 1 / update)
        expected = (1 - rate) * expected + rate * _numbers(learner.policy)
        torch.testing.assert_close(_numbers(learner.average), expected)
    assert not torch.equal(_numbers(learner.average), _numbers(learner.policy))


@kinds
def test_at_a_rate_of_one_it_is_the_policy_that_learns(kind: str) -> None:
    learner = _learner(kind, 1.0)
    assert learner.average is learner.policy
    assert "learning_policy" not in learner.state()


@kinds
def test_it_is_used_and_exported_while_the_one_that_learns_explores(kind: str) -> None:
    learner = _learner(kind)
    learner.calibrate([np.random.default_rng(7).normal(3, 5, (50, 3)).astype(np.float32)])
    for update in range(UPDATES):
        _learn(learner, kind, update)
    seen = np.random.default_rng(1).normal(3, 5, (200, 3)).astype(np.float32)
    exported = restored(learner.state()["policy"], learner.config, SEEN, ACTIONS[kind], None, 0)
    own, learned = learner.act(seen, explore=False), learner.policy.act(seen, explore=False)
    np.testing.assert_array_equal(own, exported.act(seen, explore=False))
    assert (own != learned).any()
    state = learner.generator.get_state()
    explored = learner.explore(seen)
    learner.generator.set_state(state)
    np.testing.assert_array_equal(explored, learner.policy.act(seen))
    if kind == "discrete":  # its probabilities agree with what it does
        likely = [learner.probability(seen, np.full(200, a), np.zeros((200, 0))) for a in range(4)]
        np.testing.assert_array_equal(np.argmax(likely, axis=0), own)


@kinds
def test_both_policies_are_resumed(kind: str) -> None:
    whole, first, second = (_learner(kind) for _ in range(3))
    for update in range(UPDATES):
        _learn(whole, kind, update)
        _learn(first if update < 4 else second, kind, update)
        if update == 3:
            second.load_state(first.state())
    for name in ("policy", "average"):
        assert torch.equal(_numbers(getattr(whole, name)), _numbers(getattr(second, name)))


@pytest.mark.parametrize("rate", [0.0, 1.5, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(GxError, match="policy_tau must be in"):
        LearnerConfig(policy_tau=rate)
