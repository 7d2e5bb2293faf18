"""Critics looked at from outside, without changing anything."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from rlpd_gx.learner.q_learner import QLearner
from rlpd_gx.learner.sac import Sac
from rlpd_gx.learner.soft_discrete import SoftDiscrete
from rlpd_gx.types import Array, Batch, Observation


@torch.no_grad()
def values_and_targets(learner: QLearner, batch: Batch[Array]) -> tuple[Array, Array]:
    """Q of every critic [N, B] at the executed actions of a block [1, B], and the learner's own targets [B]."""
    with _undisturbed(learner):
        minibatch = learner._minibatch(batch, 0)
        if isinstance(learner, SoftDiscrete):
            target = learner._target(minibatch)
        else:
            assert isinstance(learner, Sac)
            (policy,) = learner._next_policies([minibatch])
            target = learner._target(minibatch, policy)
        features = learner.encode(minibatch.observation)
        values = _at(learner, features, minibatch.executed_action)
    return values.double().cpu().numpy(), target.double().cpu().numpy()


@torch.no_grad()
def values_at(learner: QLearner, observation: Observation, action: Array) -> Array:
    """Q of every critic [N, B] at actions [B, ...] in the environment's units."""
    with _undisturbed(learner):
        seen, taken = learner.policy.tensors((observation, np.asarray(action)))
        values = _at(learner, learner.encode(seen), taken)
    return values.double().cpu().numpy()


def _at(learner: QLearner, features: Tensor, action: Tensor) -> Tensor:
    if isinstance(learner, Sac):
        return learner._values(features, action)[0]
    assert isinstance(learner, SoftDiscrete)
    q = learner.critic["ensemble"](features)
    return q.gather(-1, learner.policy.index(action).expand(len(q), -1, 1))[..., 0]


@contextmanager
def _undisturbed(learner: QLearner) -> Iterator[None]:
    """Sampled next actions come from a fixed seed, and the learner's own generator stays where it was."""
    state = learner.generator.get_state()
    learner.generator.manual_seed(0)
    try:
        yield
    finally:
        learner.generator.set_state(state)
