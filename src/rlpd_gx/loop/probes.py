"""Fixed sets of states on which policies and critics are compared: they depend on the task, not on guard or learner."""

from dataclasses import dataclass, replace

import gymnasium as gym
import numpy as np

from rlpd_gx.envs import snapshots
from rlpd_gx.envs.actions import uniform_actions
from rlpd_gx.envs.description import describe
from rlpd_gx.errors import GxError
from rlpd_gx.loop.environments import Environments
from rlpd_gx.loop.task import Task
from rlpd_gx.metrics.proposals import critical
from rlpd_gx.metrics.subject import Unavailable
from rlpd_gx.replay import samplers
from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.replay.ring import Ring
from rlpd_gx.rules import conjuncts
from rlpd_gx.trees import Json, Tree
from rlpd_gx.types import Array, Batch

SEED = 3_000_000  # of the fixed third policy and of its episodes
PROBES = 256  # transitions
HOLD_STEPS = 8  # for which the third policy keeps an action, on average
LOOK_EVERY = 5  # steps between states that may be kept as critical ones
MOST_STEPS = 10_000  # of the search for critical states
TRIED_ACTIONS = 256  # uniform actions that show whether a set forbids any, where actions are not listed


def unguarded(task: Task) -> Task:
    """The same task where proposals run as they are; rules are still asked and counted."""
    return Task(replace(task.config, run=replace(task.config.run, guard="none")))


class ThirdPolicy:
    """Uniformly random actions, each held for a while: the fixed policy that probe sets come from."""

    def __init__(self, space: gym.Space, seed: int) -> None:
        self.space, self.generator = space, np.random.default_rng(seed)
        self.action = uniform_actions(space, 1, self.generator)

    def __call__(self) -> Array:
        """The next action [1, ...]."""
        if self.generator.random() < 1 / HOLD_STEPS:
            self.action = uniform_actions(self.space, 1, self.generator)
        return self.action


def probe_set(task: Task, size: int = PROBES) -> Batch[Array]:
    """A block [1, size] of transitions: of the offline data, or without it of the third policy."""
    data = task.config.data
    generator = np.random.default_rng(SEED)
    offline = None if task.offline is None else task.offline.timeline
    online = None if offline is not None else _ring_of_third_policy(task, size)
    hybrid = Hybrid(
        online=online,
        offline=offline,
        sampler=samplers.Uniform(),
        generator=generator,
        batch_size=size,
        updates=1,
        stack=task.example.stack,
        gamma=data.gamma,
    )
    return hybrid.sample(1.0 if offline is None else 0.0)


def _ring_of_third_policy(task: Task, steps: int) -> Ring:
    free = unguarded(task)
    environments = free.environments([free.make_env()])
    ring = Ring(task.layout, 3 * steps + 2, 1)
    policy, everywhere = ThirdPolicy(task.example.actions.learner_space, SEED), np.ones(1, bool)
    environments.reset(everywhere, [SEED])
    ring.begin(environments.frame)
    for _ in range(steps):
        transition = environments.step(policy())
        assert transition.safe_set is not None
        ring.complete(transition.safe_set)
        ring.add(transition)
        if transition.ended.any():
            environments.reset(everywhere)
            ring.begin(environments.frame)
    environments.close()
    return ring


@dataclass(frozen=True, eq=False)
class CriticalState:
    """A state whose complete safe set has both allowed and forbidden actions, and how to return to it."""

    environment: Json
    """Snapshot."""
    observation: Tree
    """What the Learner sees there."""
    look_aheads: tuple[Json, ...]
    """The memory of look-ahead rules."""

    def restore(self, environments: Environments) -> None:
        """Put the one environment into this state."""
        (member,) = environments.members
        member.restart()
        snapshots.restore(member.env, self.environment)
        member.observation = self.observation
        for rule, memory in zip(member.look_aheads, self.look_aheads, strict=False):
            rule.restore_memory(memory)


def critical_states(task: Task, count: int) -> list[CriticalState]:
    """Up to `count` critical states that the third policy visits in whole episodes."""
    if not task.config.run.rules:
        raise Unavailable("without rules no state is critical")
    free = unguarded(task)
    environments = free.environments([free.make_env(evaluation=True)])
    (member,) = environments.members
    policy = ThirdPolicy(task.example.actions.learner_space, SEED)
    actions = task.example.actions
    drawn = uniform_actions(actions.learner_space, TRIED_ACTIONS, np.random.default_rng(SEED))
    tried = actions.executed(drawn)
    tried = tried.reshape(len(tried), -1) if tried.ndim > 2 else tried  # safe sets are of flat actions
    environments.reset(np.ones(1, bool), [SEED])
    if why := snapshots.why_not(member.env):
        environments.close()
        raise Unavailable(f"critical states are returned to, and {why}")
    found: list[CriticalState] = []
    for step in range(MOST_STEPS):
        if len(found) == count:
            break
        if step % LOOK_EVERY == 0 and critical([member.safe_set()], tried)[0]:
            taken = snapshots.snapshot(member.env)
            assert taken is not None
            memory = tuple(rule.memory() for rule in member.look_aheads)
            found.append(CriticalState(taken, member.observation, memory))
        if environments.step(policy()).ended.any():
            environments.reset(np.ones(1, bool))
    environments.close()
    if not found:
        raise Unavailable(f"no critical state was seen in {MOST_STEPS:,} steps")
    return found


def shifted(task: Task, delta: float) -> Environments:
    """The unguarded environment under rules whose thresholds are moved inwards by delta."""
    free, stricter = unguarded(task), describe(task.config.run.env).stricter
    try:
        rules = [stricter(rule, delta) for rule in conjuncts(task.example.rules)]
    except GxError as error:
        raise Unavailable(str(error)) from None
    return free.environments([free.make_env(evaluation=True, rules=rules)])
