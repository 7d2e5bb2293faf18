"""The fatal moment: how long before the unsafe event is counted nothing could prevent it any more."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from rlpd_gx.envs.atari.env import NOOP, AtariEnv, Clone
from rlpd_gx.envs.atari.recording import random_play
from rlpd_gx.types import Array

REACH = 128  # steps before an event that are looked at
MARGIN = 12  # steps without an event, past the time of the original one, that count as having escaped it
RANDOM_TRIES = 6
FEW_ACTIONS = 9
STOPS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Fatality:
    """One event, certain `lag` steps before it was counted.

    `ram` [R, 128] is what was seen until then; `escape` [S, 128] what is seen when, at the last moment, it is
    prevented: the first steps of that, in which nothing else that takes as long can be certain either.
    """

    lag: int
    ram: Array
    escape: Array


def way_out(env: AtariEnv, clone: Clone, steps: int, rng: np.random.Generator) -> list[int] | None:
    """A plan that gets through `steps` steps without an event; None if those we try all fail."""
    plans = _plans(len(env.actions), steps, rng)
    return next((plan for plan in plans if not _ends_badly(env, clone, plan)), None)


def _plans(actions: int, steps: int, rng: np.random.Generator) -> list[list[int]]:
    """Each action held; where they are few, also held and let go, to stop in the right place; and random ones."""
    held = [[action] * steps for action in range(actions)]
    stops = STOPS if actions <= FEW_ACTIONS else ()
    stopped = [[action] * stop + [NOOP] * (steps - stop) for action in range(1, actions) for stop in stops]
    return held + stopped + rng.integers(actions, size=(RANDOM_TRIES, steps)).tolist()


def _ends_badly(env: AtariEnv, clone: Clone, plan: list[int]) -> bool:
    env.restore_clone(clone)
    for action in plan:
        _, unsafe_event = env.advance(action)
        if unsafe_event:
            return True
        if env.game_over:
            return False
    return False


def fatalities(env: AtariEnv, events: int, steps: int, seed: int) -> list[Fatality]:
    """Play for this many events or steps; go back from each event to the step where it became certain."""
    rng = np.random.default_rng(seed)
    play = random_play(env, rng)
    found: list[Fatality] = []
    env.reset(seed=seed)
    past: deque[Clone] = deque(maxlen=REACH)  # states since the last event, the newest last
    for _ in range(steps):
        past.append(env.clone())
        *_, terminated, truncated, info = env.step(next(play))
        if info["unsafe_event"]:
            now = env.clone()
            found.append(_look_back(env, list(past), rng))
            env.restore_clone(now)
            past.clear()
        if len(found) == events:
            break
        if terminated or truncated:
            env.reset()
            past.clear()
    return found


def _look_back(env: AtariEnv, past: list[Clone], rng: np.random.Generator) -> Fatality:
    """Find the largest k such that the state k steps before the event was doomed, by doubling and halving."""
    certain, open_ = 0, len(past) + 1
    last_way_out: list[int] = []
    probe = 2
    while open_ - certain > 1:
        k = min(probe, (certain + open_) // 2)
        plan = way_out(env, past[-k], k + MARGIN, rng)
        if plan is None:
            certain, probe = k, 2 * k
        else:
            open_, last_way_out = k, plan
    escape = []
    if last_way_out:
        env.restore_clone(past[-open_])
        for action in last_way_out[: len(last_way_out) - certain]:
            env.advance(action)
            escape.append(env.ram())
    ram = np.array([clone.ram for clone in past])
    return Fatality(certain, ram, np.array(escape, np.uint8).reshape(-1, ram.shape[1]))
