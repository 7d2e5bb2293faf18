"""Play that is good for finding out how a game kills: random actions, some of them held, and what RAM showed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rlpd_gx.envs.atari.env import AtariEnv
from rlpd_gx.types import Array

HOLDS = (1, 1, 2, 4, 8)  # steps an action may be held; a purely random player stays near where it starts


@dataclass(frozen=True)
class Recording:
    """RAM after each step [T, 128], whether the unsafe event was counted in it [T], and the game's number [T]."""

    ram: Array
    event: Array
    game: Array

    @property
    def events(self) -> Array:
        """The steps at which events were counted [E]."""
        return np.flatnonzero(self.event)


def random_play(env: AtariEnv, rng: np.random.Generator) -> Iterator[int]:
    """Actions, drawn evenly and held for a while."""
    while True:
        action = int(rng.integers(env.action_space.n))  # type: ignore[attr-defined]
        yield from [action] * int(rng.choice(HOLDS))


def record(env: AtariEnv, events: int, steps: int, seed: int) -> Recording:
    """Play for this many unsafe events or this many steps, whichever comes first."""
    play = random_play(env, np.random.default_rng(seed))
    env.reset(seed=seed)
    ram: list[Array] = []
    happened: list[bool] = []
    games: list[int] = []
    game = seen = 0
    while len(ram) < steps and seen < events:
        *_, terminated, truncated, info = env.step(next(play))
        ram.append(env.ram())
        happened.append(info["unsafe_event"])
        games.append(game)
        seen += info["unsafe_event"]
        if terminated or truncated:
            env.reset()
            game += 1
    return Recording(np.array(ram), np.array(happened), np.array(games))
