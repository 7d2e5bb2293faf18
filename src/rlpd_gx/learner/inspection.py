"""Critics looked at from outside, without changing anything."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from rlpd_gx.learner.sac import Sac
from rlpd_gx.types import Array, Batch, Observation


@torch.no_grad()
def values_and_targets(learner: Sac, batch: Batch[Array]) -> tuple[Array, Array]:
    """Q of every critic [N, B] at the executed actions of a block [1, B], and the learner's own targets [B]."""
    with _undisturbed(learner):
        minibatch = learner._minibatch(batch, 0)
        (policy,) = learner._next_policies([minibatch])
        target = learner._target(minibatch, policy)
        features = learner.encode(minibatch.observation)
        values = learner._values(features, minibatch.executed_action)[0]
    return values.double().cpu().numpy(), target.double().cpu().numpy()


@torch.no_grad()
def values_at(learner: Sac, observation: Observation, action: Array) -> Array:
    """Q of every critic [N, B] at actions [B, ...] in the environment's units."""
    with _undisturbed(learner):
        seen, taken = learner.policy.tensors((observation, np.asarray(action)))
        values = learner._values(learner.encode(seen), taken)[0]
    return values.double().cpu().numpy()


@contextmanager
def _undisturbed(learner: Sac) -> Iterator[None]:
    """Sampled next actions come from a fixed seed, and the learner's own generator stays where it was."""
    state = learner.generator.get_state()
    learner.generator.manual_seed(0)
    try:
        yield
    finally:
        learner.generator.set_state(state)
