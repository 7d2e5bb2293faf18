"""Violations counted from outside: a wrapper below the guard that judges every action which reaches the environment.

It shares no code with the Guardian: RAM rules are asked for their margins directly, the constraints of MuJoCo tasks are
computed from the simulator, and look-ahead is judged by what follows (`experiments.hindsight`). A violation is a
forbidden action that ran while an allowed one existed.
"""

from collections.abc import Callable, Iterable
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from rlpd_gx.loop.train import Trainer
from rlpd_gx.trees import Json, Tree
from rlpd_gx.types import Action, Array, Info

TOLERANCE = 1e-6  # of a limit, relative
Judge = Callable[[Action], bool]


class Counter(gym.Wrapper):
    """Counts executed actions and those that break a rule; its counts are part of a checkpoint."""

    def __init__(self, env: gym.Env, judge: Judge) -> None:
        super().__init__(env)
        self.judge = judge
        self.executed, self.violations = 0, 0

    def step(self, action: Action) -> tuple[Tree, SupportsFloat, bool, bool, Info]:
        """Count the action as it reaches the environment."""
        self.executed += 1
        self.violations += self.judge(action)
        return self.env.step(action)

    def counts(self) -> dict[str, int]:
        """Executed actions and violations so far."""
        return {"executed": self.executed, "violations": self.violations}

    def clear(self) -> None:
        """Count from zero."""
        self.executed, self.violations = 0, 0

    def snapshot(self) -> Json:
        """What a checkpoint keeps."""
        return self.counts()

    def restore(self, snapshot: Json) -> None:
        """Restore a snapshot."""
        self.executed, self.violations = snapshot["executed"], snapshot["violations"]


def counting(env: gym.Env, rules: str) -> gym.Env:
    """The environment with a counter, where these rules can be judged from outside."""
    make = COUNTERS.get(rules)
    return env if make is None else make(env)


class Log:
    """A watcher that writes the counts into the metrics of the run: `row` comes right after each row of the trainer."""

    def __init__(self, trainer: Trainer) -> None:
        self.folder = trainer.folder
        self.training = [c for m in trainer.environments.members for c in _counters(m.env)]
        self.evaluating = [c for m in trainer.evaluation_environment.members for c in _counters(m.env)]

    def step(self, trainer: Trainer) -> None:
        """Nothing between rows."""

    def row(self, kind: str, step: int, values: Json) -> None:
        """Training is counted from the start of the run, an evaluation by itself."""
        counters = {"train": self.training, "evaluation": self.evaluating}.get(kind, [])
        if not counters:
            return
        counts = {
            name: sum(counter.counts()[name] for counter in counters) for name in ("executed", "violations")
        }
        self.folder.log("outside", step, where=kind, **counts)
        if kind == "evaluation":
            for counter in counters:
                counter.clear()


def counted_outside(metrics: Iterable[Json]) -> Json:
    """The counts of a run in training and in all of its evaluations; empty where nothing was counted."""
    rows = [row for row in metrics if row["kind"] == "outside"]
    training = [row for row in rows if row["where"] == "train"][-1:]
    evaluations = [row for row in rows if row["where"] == "evaluation"]
    sums = {
        where: {name: sum(row[name] for row in found) for name in ("executed", "violations")}
        for where, found in (("training", training), ("evaluation", evaluations))
    }
    return sums if rows else {}


def _counters(env: Any) -> list[Counter]:
    found = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, Counter):
            found.append(env)
        env = env.env
    return found


def _ram(env: gym.Env) -> Counter:
    from rlpd_gx.envs.atari import AtariEnv, RamRules

    game: AtariEnv = env.unwrapped  # type: ignore[assignment]
    rules = [part.margins for part in RamRules(env).parts]  # type: ignore[attr-defined]

    def judge(action: Action) -> bool:
        now, before = game.ram(), game.previous_ram()
        margins = np.min([rule(now, before) for rule in rules], axis=0)
        return bool(margins[int(action)] < 0 <= margins.max())

    return Counter(env, judge)


def _look_ahead(name: str) -> Callable[[gym.Env], Counter]:
    def of(env: gym.Env) -> Counter:
        from rlpd_gx.envs.atari import lookahead
        from rlpd_gx.experiments.hindsight import HindsightCounter

        return HindsightCounter(env, getattr(lookahead, name))

    return of


def _joints(
    limits: Callable[[Array, Array, Array], Iterable[tuple[float, float]]],
) -> Callable[[gym.Env], Counter]:
    """A counter for (velocity, angle, action) -> values and their limits; zero torque is always allowed."""

    def of(env: gym.Env) -> Counter:
        simulator: Any = env.unwrapped

        def judge(action: Action) -> bool:
            count = simulator.model.nu  # the actuated joints are the last ones in these tasks
            velocity, angle = simulator.data.qvel[-count:], simulator.data.qpos[-count:]
            executed = np.asarray(action, np.float64)
            return any(value > limit * (1 + TOLERANCE) for value, limit in limits(velocity, angle, executed))

        return Counter(env, judge)

    return of


COUNTERS: dict[str, Callable[[gym.Env], Counter]] = {  # by the name of the rules
    "rlpd_gx.envs.atari:RamRules": _ram,
    "rlpd_gx.envs.atari:Lookahead": _look_ahead("Lookahead"),
    "rlpd_gx.envs.atari:QuickLookahead": _look_ahead("QuickLookahead"),
    "rlpd_gx.envs.mujoco:power": _joints(lambda w, _, a: [(np.maximum(w * a, 0).sum(), 10)]),
    "rlpd_gx.envs.mujoco:cheetah_power": _joints(lambda w, _, a: [(np.abs(w * a).sum(), 20)]),
    "rlpd_gx.envs.mujoco:power_and_bent_joints": _joints(
        lambda w, theta, a: [(np.abs(w * a).sum(), 10), ((a**2 * np.sin(theta) ** 2).sum(), 0.1)]
    ),
}
