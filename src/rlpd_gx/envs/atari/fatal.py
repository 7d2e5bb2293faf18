"""The fatal moment: how long before the unsafe event is counted nothing could prevent it any more."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from rlpd_gx.envs.atari.env import AtariEnv, Clone
from rlpd_gx.envs.atari.recording import random_play
from rlpd_gx.types import Array

REACH = 128  # steps before an event that are looked at
MARGIN = 12  # steps without an event, past the time of the original one, that count as having escaped it
RANDOM_TRIES = 6


@dataclass(frozen=True)
class Fatality:
    """One event: it was certain `lag` steps before it was counted; `ram` [R, 128] is what was seen until then."""

    lag: int
    ram: Array


def doomed(env: AtariEnv, clone: Clone, steps: int, rng: np.random.Generator) -> bool:
    """Whether neither a held action nor any of a few random plays gets through `steps` steps without an event."""
    count = len(env.actions)
    held = [[action] * steps for action in range(count)]
    drawn = rng.integers(count, size=(RANDOM_TRIES, steps)).tolist()
    return all(_ends_badly(env, clone, plan) for plan in held + drawn)


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
    """Play until so many events or steps; go back from each event to the step where it became certain."""
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
            found.append(Fatality(_lag(env, list(past), rng), np.array([clone.ram for clone in past])))
            env.restore_clone(now)
            past.clear()
        if len(found) == events:
            break
        if terminated or truncated:
            env.reset()
            past.clear()
    return found


def _lag(env: AtariEnv, past: list[Clone], rng: np.random.Generator) -> int:
    """The largest k such that the state k steps before the event was already doomed; halving finds it."""
    certain, open_ = 0, len(past) + 1
    probe = 2
    while open_ - certain > 1:
        k = min(probe, (certain + open_) // 2)
        if doomed(env, past[-k], k + MARGIN, rng):
            certain, probe = k, 2 * k
        else:
            open_ = k
    return certain
