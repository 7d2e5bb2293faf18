"""`GuardedEnv.safe_set`: what is allowed where the environment stands now."""

import gymnasium
import numpy as np
import pytest

import rlpd_gx as gx


@gx.bounds_rule(batched=True, needs=("time",))
def ever_less(state, time):
    limit = state["limit"] / (1 + time)[:, None]
    return -limit, limit


def limit(env, observation, info):
    return {"limit": np.abs(observation[:1])}


def test_it_follows_the_episode_to_its_last_state():
    env = gx.GuardedEnv(gymnasium.make("Pendulum-v1", max_episode_steps=3), ever_less, state=limit)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.safe_set()
    observation, _ = env.reset(seed=0)
    for time in range(4):
        bounds = env.safe_set().parts[1]
        assert bounds.high == pytest.approx(np.abs(observation[:1]) / (1 + time))
        if time < 3:
            observation, _, _, truncated, info = env.step(np.array([2.0], np.float32))
            assert (info["guardian"].safe_set.parts[1].high == bounds.high).all()  # of the state before
    assert truncated
    assert (env.audit.tally.proposals, env.audit.tally.episodes) == (3, 1)  # looking is no proposal
    observation, _ = env.reset()
    assert env.safe_set().parts[1].high == pytest.approx(np.abs(observation[:1]))
    env.step(np.array([2.0], np.float32))
    env.close()
    assert env.audit.tally.episodes == 2


def test_rules_that_cannot_be_asked_or_told():
    @gx.mask_rule
    def broken(state):
        raise ValueError("no reading")

    env = gx.GuardedEnv(gymnasium.make("CartPole-v1"), broken)
    env.reset(seed=0)
    with pytest.raises(gx.GxError, match="no reading"):
        env.safe_set()
    env.step(0)  # stops the episode
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.safe_set()

    @gx.rule
    def gentle(state, action):
        return bool(np.abs(action).max() < 0.5)

    env = gx.GuardedEnv(gymnasium.make("Pendulum-v1"), gentle)
    env.reset(seed=0)
    assert env.safe_set().contains(np.array([[0.4], [0.6]], np.float32)).tolist() == [True, False]
