"""On MDPs with a lure the deep learner finds the guarded soft values of theory; an unguarded backup does not."""

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from batches import batch

import rlpd_gx as gx
from rlpd_gx.learner import LearnerConfig, SacDiscrete, SoftDiscrete
from rlpd_gx.theory import guarded_value_iteration, lure_bandit, lure_corridor, lure_gate
from rlpd_gx.theory.lures import Lure
from rlpd_gx.types import Batch

ALPHA = 0.1
CONFIG = LearnerConfig(
    ensemble_size=2,
    target_subset=1,
    hidden_sizes=(64, 64),
    learning_rate=3e-3,
    tau=0.05,
    temperature=ALPHA,
    backup_entropy="add",
    target_entropy="fixed",
    backup="renormalise",
    actor="masked",
    normalise=False,
)
SOFT = replace(CONFIG, actor="auto")
Learned = SacDiscrete | SoftDiscrete
LURES = [
    lure_bandit(0.7),
    lure_corridor(4, 0.9, exit_reward=1.0, jackpot=4.0),
    lure_gate(1, 0.1, 0.8),
]


def _transitions(lure: Lure, count: int, seed: int) -> Batch:
    """Random steps of the MDP: every action of every state, the lure among them."""
    generator = np.random.default_rng(seed)
    mdp = lure.mdp
    states = [s for s in range(mdp.num_states) if s != lure.terminal]
    state = generator.choice(states, count)
    action = generator.integers(mdp.num_actions, size=count)
    table = np.asarray(mdp.transitions).reshape(mdp.num_states, mdp.num_actions, mdp.num_states)
    arrived = np.array(
        [generator.choice(mdp.num_states, p=table[s, a]) for s, a in zip(state, action, strict=True)]
    )
    reward = mdp.rewards[state, action]
    if lure.name == "gate":  # its reward depends on where the step led
        reward = (arrived == lure.terminal).astype(float)
    codes = gx.Mask(mdp.allowed).encode()
    discount = np.where(arrived == lure.terminal, 0.0, mdp.discount)
    seen = np.eye(mdp.num_states, dtype=np.float32)
    return batch(
        seen[state], action, reward, seen[arrived], discount, codes[state], codes[arrived], updates=8
    )


def _learn(lure: Lure, config: LearnerConfig) -> Learned:
    space = gym.spaces.Box(0, 1, (lure.mdp.num_states,), np.float32)
    actions = gym.spaces.Discrete(lure.mdp.num_actions)
    kind = SoftDiscrete if config.actor == "auto" else SacDiscrete
    learner = kind(config, space, actions, safe_set_spec=gx.Mask(lure.mdp.allowed).spec, seed=0)
    for epoch in range(90):
        learner.update(_transitions(lure, 1024, epoch))
    return learner


def _error(learner: Learned, lure: Lure) -> float:
    """The largest distance to the guarded soft fixed point, over allowed actions of states that go on."""
    solution = guarded_value_iteration(lure.mdp, alpha=ALPHA)
    with torch.no_grad():
        q = learner.critic["ensemble"](torch.eye(lure.mdp.num_states)).mean(dim=0).numpy()
    counts = lure.mdp.allowed.copy()
    if lure.terminal is not None:
        counts[lure.terminal] = False
    return float(np.abs(q - solution.q)[counts].max())


def _policy(learner: Learned, lure: Lure) -> Any:
    """The raw policy [states, actions]."""
    states = np.eye(lure.mdp.num_states, dtype=np.float32)
    with torch.no_grad():
        return learner.policy.logits(learner.encode(torch.from_numpy(states))).softmax(dim=-1).numpy()


@pytest.mark.parametrize("config", [CONFIG, SOFT], ids=["actor", "soft"])
@pytest.mark.parametrize("lure", LURES, ids=lambda lure: lure.name)
def test_values_are_those_of_the_guarded_soft_fixed_point(lure: Lure, config: LearnerConfig) -> None:
    learner = _learn(lure, config)
    assert _error(learner, lure) < 0.1
    _chooses_well(lure, np.where(lure.mdp.allowed, _policy(learner, lure), 0.0).argmax(axis=1))


def _chooses_well(lure: Lure, chosen: Any) -> None:
    """The action executed in each state is allowed and nearly best: never on the way to the lure."""
    going_on = [s for s in range(lure.mdp.num_states) if s != lure.terminal]
    best = np.where(lure.mdp.allowed, guarded_value_iteration(lure.mdp).q, -np.inf)
    assert np.all(best[going_on, chosen[going_on]] >= best[going_on].max(axis=1) - 0.11)


@pytest.mark.parametrize("lure", LURES, ids=lambda lure: lure.name)
def test_raw_proposals_of_a_soft_policy_are_valued_as_they_are_executed(lure: Lure) -> None:
    """Without the safe set it may propose the lure, which is then worth what its correction is worth."""
    learner = _learn(lure, replace(SOFT, backup="project"))
    proposed = _policy(learner, lure).argmax(axis=1)
    _chooses_well(lure, gx.Mask(lure.mdp.allowed).project(proposed))


def test_raw_proposals_without_that_value_are_corrected_to_the_wrong_action() -> None:
    """In the bandit the correction of the lure is not the best allowed action."""
    lure = LURES[0]
    learner = _learn(lure, SOFT)
    assert _policy(learner, lure)[lure.state].argmax() == lure.action


def test_a_raw_actor_chases_the_lure() -> None:
    lure = LURES[0]
    learner = _learn(lure, replace(CONFIG, actor="raw"))
    policy = _policy(learner, lure)
    assert policy[lure.state].argmax() == lure.action


@pytest.mark.parametrize("lure", LURES, ids=lambda lure: lure.name)
def test_an_unguarded_backup_fails_the_same_test(lure: Lure) -> None:
    assert _error(_learn(lure, replace(CONFIG, backup="none", actor="raw")), lure) > 0.3
