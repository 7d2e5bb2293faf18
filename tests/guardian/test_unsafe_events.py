"""Unsafe events: what a person's function answers, and what is counted of it."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from line_world import Line

import rlpd_gx as gx


@pytest.mark.parametrize("answer", [None, 0.5, float("nan"), "no", np.array([True, False])])
def test_an_answer_about_unsafe_events_that_is_neither_yes_nor_no_is_refused(answer):
    env = gx.GuardedEnv(Line(), gx.bounds_rule(lambda s: ([-1], [1])), unsafe_event=lambda *outcome: answer)
    env.reset(seed=0)
    with pytest.raises(gx.GxError, match="unsafe_event returned"):
        env.step(np.zeros(1, np.float32))


def test_where_a_function_of_unsafe_events_raised_is_said():
    env = gx.GuardedEnv(Line(), gx.bounds_rule(lambda s: ([-1], [1])), unsafe_event=lambda *outcome: 1 / 0)
    env.reset(seed=0)
    with pytest.raises(
        gx.GxError, match=r"unsafe_event raised ZeroDivisionError: .* \(test_unsafe_events.py, line"
    ):
        env.step(np.zeros(1, np.float32))


def test_unsafe_events_are_counted_by_episode_and_bounded():
    def fell(observation, reward, terminated, truncated, info):
        return observation[0] > 2

    env = gx.GuardedEnv(Line(), gx.bounds_rule(lambda s: ([-1], [1])), unsafe_event=fell)
    for push in (1.0, 0.1, 0.1, 1.0):
        env.reset(seed=0)
        for _ in range(5):
            env.step(np.array([push], np.float32))
    counts = env.audit.tally
    assert (counts.episodes, counts.episodes_watched, counts.episodes_with_unsafe_event) == (4, 4, 2)
    # Clopper-Pearson: at the bound p, seeing at most 2 of 4 has probability 5%.
    p = env.audit.upper_bound(0.95)
    q = 1 - p
    assert q**4 + 4 * p * q**3 + 6 * p**2 * q**2 == pytest.approx(0.05, abs=1e-9)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_last_step_of_a_vector_episode_is_watched_too(mode):
    def at_the_end(observations, rewards, terminated, truncated, infos):
        return observations[:, 0] > 0.45  # true in the fifth step only

    vector = SyncVectorEnv([Line, Line], autoreset_mode=mode)
    slow = gx.bounds_rule(lambda s: (np.full((2, 1), -0.1), np.full((2, 1), 0.1)), batched=True)
    env = gx.GuardedVectorEnv(vector, slow, unsafe_event=at_the_end)
    env.reset(seed=0)
    for _ in range(12):
        env.step(np.ones((2, 1), np.float32))
    counts = env.audit.tally
    assert counts.episodes_with_unsafe_event == counts.episodes == 4
    assert counts.episodes_corrected == 4
