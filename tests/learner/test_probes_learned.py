"""Both learners on environments whose Q is known: to within 0.1."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from batches import batch

from rlpd_gx.envs.probes import PROBES, Lure, Probe, lure_bounds, lure_mask
from rlpd_gx.guardian import GuardedEnv
from rlpd_gx.learner import LearnerConfig, SacContinuous, SacDiscrete, SoftDiscrete
from rlpd_gx.types import Batch

GAMMA = 0.9
CONFIG = LearnerConfig(
    ensemble_size=2,
    target_subset=1,
    hidden_sizes=(64, 64),
    learning_rate=3e-3,
    tau=0.05,
    temperature=0.03,  # against an actor that settles before its critic has
    backup_entropy="none",  # so that Q is the hard value
    target_entropy="fixed",
    backup="renormalise",
    actor="masked",
    normalise=False,
)


def _collect(probe: Probe, steps: int, seed: int) -> tuple[Batch, Any]:
    """Random actions, the lure included; safe sets of the probe's rule where it has one."""
    generator = np.random.default_rng(seed)
    rule = None
    if isinstance(probe, Lure):
        rule = lure_bounds if probe.continuous else lure_mask
    env: Any = probe if rule is None else GuardedEnv(probe, rule, mode="monitor")
    observation, _ = env.reset(seed=seed)
    env.action_space.seed(seed + 1)  # the same seed would draw the same numbers as the environment
    rows, spec = [], None

    def code() -> Any:
        nonlocal spec
        if rule is None:
            return np.zeros(0, np.uint8)
        safe_set = env.safe_set()
        spec = safe_set.spec
        return safe_set.encode()

    here = code()
    for _ in range(steps):
        action = env.action_space.sample()
        arrived, reward, terminated, truncated, _ = env.step(action)
        there = code()
        rows.append((observation, action, reward, arrived, 0.0 if terminated else GAMMA, here, there))
        observation, here = arrived, there
        if terminated or truncated:
            observation, _ = env.reset()
            here = code()
    columns = [np.stack([row[i] for row in rows]) for i in range(7)]
    order = generator.permutation(steps)
    return batch(*(c[order] for c in columns), updates=steps // 64), spec


def _q(learner: Any, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        features = learner.encode(torch.as_tensor(observation))
        if isinstance(learner, SoftDiscrete):
            q = learner.critic["ensemble"](features).mean(dim=0)
            return q.gather(-1, torch.as_tensor(action)[:, None])[:, 0].numpy()
        return learner._values(features, torch.as_tensor(action))[0].mean(dim=0).numpy()


PATHS: dict[str, tuple[bool, Any]] = {  # whether actions are continuous, and settings under a rule
    "soft": (False, {"actor": "auto"}),
    "soft, projected": (False, {"actor": "auto", "backup": "project"}),
    "discrete": (False, {"actor": "masked"}),
    "continuous": (True, {"actor": "auto"}),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", PROBES, ids=lambda kind: kind.__name__)
def test_the_value_of_a_probe_is_learned(kind: type[Probe], path: str) -> None:
    continuous, settings = PATHS[path]
    probe = kind(continuous)
    data, spec = _collect(probe, 512, seed=0)
    config = replace(CONFIG, **settings)
    if spec is None:
        config = replace(config, backup="none", actor="raw" if path == "discrete" else "auto")
    learner = _learner(probe, config, spec)
    for _ in range(150):
        learner.update(data)
    observation, action = (v.reshape(-1, *v.shape[2:]) for v in (data.observation, data.executed_action))
    if config.backup == "project":  # a forbidden action has no value of its own
        kept = probe.q(observation, action, GAMMA) <= 1
        observation, action = observation[kept], action[kept]
    expected = probe.q(observation, action, GAMMA)
    assert np.abs(_q(learner, observation, action) - expected).mean() < 0.1
    if spec is None:
        states = np.unique(observation, axis=0)
        chosen = probe.q(states, learner.act(states, explore=False), GAMMA)
        assert (chosen > _best(probe, states) - 0.1).all()


def _best(probe: Probe, states: np.ndarray) -> np.ndarray:
    """The value [n] of the best action in each state."""
    actions = np.linspace(-1, 1, 41)[:, None, None] if probe.continuous else np.arange(probe.actions)[:, None]
    return probe.q(
        states, np.broadcast_to(actions, (len(actions), len(states), *actions.shape[2:])), GAMMA
    ).max(axis=0)


@pytest.mark.parametrize(
    ("continuous", "actor"),
    [(False, "auto"), (False, "raw"), (True, "raw")],
    ids=["soft", "discrete", "continuous"],
)
def test_an_unguarded_backup_believes_the_lure(continuous: bool, actor: Any) -> None:
    probe = Lure(continuous)
    data, spec = _collect(probe, 512, seed=0)
    learner = _learner(probe, replace(CONFIG, backup="none", actor=actor), spec)
    for _ in range(150):
        learner.update(data)
    first = np.zeros((1, 1), np.float32)
    action = np.zeros((1, 1), np.float32) if continuous else np.zeros(1, np.int64)
    believed = _q(learner, first, action)[0]
    assert believed > probe.q(first, action, GAMMA)[0] + 1.0  # guarded: 0.9; what the lure promises: 4.5


def _learner(probe: Probe, config: LearnerConfig, spec: Any) -> Any:
    discrete = SoftDiscrete if config.actor == "auto" else SacDiscrete
    kind: Any = SacContinuous if probe.continuous else discrete
    return kind(config, probe.observation_space, probe.action_space, safe_set_spec=spec, seed=0)
