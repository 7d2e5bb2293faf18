"""A clone of the behaviour policy behind the offline data, and how far a policy is from it."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import torch

from rlpd_gx import trees
from rlpd_gx.learner import QLearner
from rlpd_gx.learner.categorical import Guarded
from rlpd_gx.loop.task import Task
from rlpd_gx.metrics.subject import Unavailable
from rlpd_gx.metrics.support import support_kl, support_kl_sampled
from rlpd_gx.replay import samplers
from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.replay.timeline import Timeline
from rlpd_gx.types import Array, Batch, Observation

SEED = 5_000_000
UPDATES, BLOCK, BATCH = 2_000, 50, 256
HELD_OUT = 0.1  # of the offline rows
KL_SAMPLES = 8  # actions in each state, where actions are continuous
SMALLEST = 1e-30  # probability


def cloned(task: Task) -> tuple[QLearner, Array]:
    """The clone, and its probabilities of held-out offline actions [k]."""
    if task.offline is None:
        raise Unavailable("there is no offline data to clone")
    fitted, held_out = _split(task.offline.timeline)
    learner = replace(
        task.config.learner, actor="clone", backup="none", execution="project", support=0.0, policy_tau=1.0
    )
    run = replace(task.config.run, guard="none", seed=SEED)
    clone = Task(replace(task.config, learner=learner, run=run)).learner()
    hybrid = _hybrid(fitted, BLOCK, task.example.stack)
    if clone.calibrates:
        clone.calibrate([trees.index(hybrid.sample(0.0).observation, 0) for _ in range(10)])
    for _ in range(UPDATES // BLOCK):
        block = hybrid.sample(0.0)
        for number in range(BLOCK):  # a block has one actor update, so each minibatch becomes a block
            clone.update(Batch(**trees.index(block.arrays(), np.s_[number : number + 1])))
    held = trees.index(_hybrid(held_out, 1, task.example.stack).sample(0.0).arrays(), 0)
    return clone, clone.probability(held["observation"], held["executed_action"], held["safe_set"])


def divergence(
    clone: QLearner,
    learner: QLearner | None,
    task: Task,
    seen: Observation,
    actions: Array,
    sets: Array,
) -> float | None:
    """Support KL on states of what is executed; without a learner that is what was seen.

    Continuous policies are measured before the guard moves their actions, since what is moved has no density. None
    where there is none at all, and where joint actions are too many to sum over.
    """
    space = task.example.actions.learner_space
    if isinstance(space, gym.spaces.Discrete):
        each = [np.full(len(actions), space.start + a) for a in range(int(space.n))]
        if learner is None:
            own = np.stack([actions == a for a in each], axis=1).astype(np.float64)
        else:
            own = _executed(np.stack([learner.probability(seen, a, sets) for a in each], axis=1), sets, task)
        return support_kl(own, np.stack([clone.probability(seen, a, sets) for a in each], axis=1))
    if learner is None or not isinstance(space, gym.spaces.Box):
        return None
    dimension = int(np.prod(space.shape))
    generator = torch.Generator(learner.device).manual_seed(SEED)
    drawn = [learner.act(seen, explore=True, generator=generator) for _ in range(KL_SAMPLES)]

    def log_density(policy: QLearner) -> Array:  # `probability` is the density for each component
        return np.stack([dimension * np.log(policy.probability(seen, a, sets)) for a in drawn])

    return support_kl_sampled(log_density(learner), log_density(clone), -dimension * np.log(2.0))


def _executed(policy: Array, sets: Array, task: Task) -> Array:
    """What a guard makes of a policy [B, n]: drawn from the allowed actions, or moved onto them.

    A policy that is one of these already stays as it is.
    """
    if task.guard.mode != "enforce" or task.example.spec is None:
        return policy
    config = task.learner_config
    executed = replace(config, backup="renormalise" if config.execution == "resample" else "project")
    guarded = Guarded(policy.shape[1], task.example.spec, executed, task.example.embedding, "cpu")
    logits = torch.as_tensor(np.log(np.maximum(policy, SMALLEST)))
    return guarded.policy(logits, guarded.allowed(sets)).numpy()


def _hybrid(timeline: Timeline, updates: int, stack: int) -> Hybrid:
    return Hybrid(
        online=None,
        offline=timeline,
        sampler=samplers.Uniform(),
        generator=np.random.default_rng(SEED),
        batch_size=BATCH,
        updates=updates,
        stack=stack,
    )


def _split(timeline: Timeline) -> tuple[Timeline, Timeline]:
    """Whole episodes to fit, and the last ones, about 10% of the rows, to hold out."""
    starts = np.flatnonzero(~timeline.is_step[:-1] & timeline.is_step[1:]) + 1
    if not len(starts):
        raise Unavailable("the offline data is a single episode; some whole episodes must be held out")
    cut = int(starts[np.abs(starts - (1 - HELD_OUT) * len(timeline)).argmin()])
    columns = timeline.columns()
    parts = [{name: column[part] for name, column in columns.items()} for part in (np.s_[:cut], np.s_[cut:])]
    return Timeline.from_columns(parts[0]), Timeline.from_columns(parts[1])
