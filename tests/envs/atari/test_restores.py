"""Restoring a state many times: look-ahead does nothing else, and a newer ale-py was reported to corrupt memory."""

import numpy as np
import pytest

from rlpd_gx.envs import atari

RESTORES = 10_000


@pytest.mark.long
@pytest.mark.parametrize("game", sorted(atari.GAMES))
def test_ten_thousand_restores_leave_the_game_as_it_was(game: str) -> None:
    env = atari.make(game, "ram")
    env.reset(seed=0)
    generator = np.random.default_rng(0)
    actions = generator.integers(env.action_space.n, size=40)
    for action in actions[:20]:
        env.step(int(action))
    ale = env.unwrapped.ale
    state, frames = ale.cloneState(), []
    for _ in range(2):
        ale.restoreState(state)
        for action in actions[20:]:
            env.step(int(action))
        frames.append((ale.getRAM().copy(), ale.getScreenGrayscale().copy()))
        for restore in range(RESTORES // 2):
            ale.restoreState(state)
            if restore % 10 == 0:
                ale.act(0)  # one frame of four: in the middle of a step
        ale.restoreState(state)
    for before, after in zip(*frames, strict=True):
        np.testing.assert_array_equal(before, after)
