"""The closed forms against value iteration by sampling every branch of the environment itself."""

import gymnasium as gym
import numpy as np
import pytest

from rlpd_gx import Guardian
from rlpd_gx.envs import making
from rlpd_gx.envs.probes import LURE_LIMIT, PROBES, Lure, lure_bounds, lure_mask

BOTH = pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])


def candidates(env):
    """All actions worth trying, the best ones included."""
    if not env.continuous:
        return list(range(env.action_space.n))
    return [np.array([a], np.float32) for a in (-1.0, -0.5, 0.0, 0.2, 0.3, 0.5, 1.0)]


def allowed(env, observation, action, guarded):
    if not (guarded and isinstance(env, Lure)) or observation[0] <= 0:
        return True
    return action[0] <= np.float32(LURE_LIMIT) if env.continuous else action != 2


def searched(env, observation, action, gamma, guarded=True, depth=60):
    """Q by trying everything, from the environment's present state, which is left as it was."""
    here = env.snapshot()
    following, reward, terminated, truncated, _ = env.step(action)
    value = reward
    if truncated:  # the episode is cut, the process goes on: count steps from the start again
        env.restore(here | {"step": 0})
    if not terminated and depth:
        # in an endless probe all states are alike: one action stands for all
        tried = candidates(env)[:1] if env.endless else candidates(env)
        value += gamma * max(
            searched(env, following, a, gamma, guarded, depth - 1)
            for a in tried
            if allowed(env, following, a, guarded)
        )
    env.restore(here)
    return value


@BOTH
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
@pytest.mark.parametrize("gamma", [0.5, 0.8])
def test_q_is_what_trying_everything_finds(probe, continuous, gamma):
    env = probe(continuous)
    seen = set()
    for seed in range(6):
        observation, _ = env.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            seen.add(float(observation[0]))
            for action in candidates(env):
                expected = searched(env, observation, action, gamma)
                assert env.q(observation, action, gamma) == pytest.approx(expected, abs=1e-5)
            observation, _, terminated, truncated, _ = env.step(candidates(env)[0])
        assert terminated != env.endless
    assert len(seen) == 2


@BOTH
def test_without_the_rule_the_lure_is_worth_five_times_more(continuous):
    env = Lure(continuous)
    observation, _ = env.reset(seed=0)
    action = candidates(env)[0]
    assert searched(env, observation, action, 0.9, guarded=False) == pytest.approx(4.5)
    assert env.q(observation, action, 0.9) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("rule", "continuous", "lure", "moved"),
    [(lure_mask, False, 2, (0, 1)), (lure_bounds, True, np.array([0.9], np.float32), (LURE_LIMIT,))],
)
def test_the_rule_forbids_the_lure_at_the_second_step_only(rule, continuous, lure, moved):
    env = Lure(continuous)
    guardian = Guardian(env.action_space, rule)
    first, _ = env.reset(seed=0)
    second, *_ = env.step(lure)
    assert not guardian.certify(first, lure).corrected
    verdict = guardian.certify(second, lure)
    assert verdict.corrected
    assert any(np.allclose(verdict.action, choice) for choice in moved)


@BOTH
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_q_takes_batches(probe, continuous):
    env = probe(continuous)
    observations = np.array([[[-1.0], [0.0]], [[1.0], [1.0]]], np.float32)
    actions = np.linspace(-1, 1, 4).reshape(2, 2, 1) if continuous else np.array([[0, 1], [1, 0]])
    found = env.q(observations, actions, 0.9)
    assert found.shape == (2, 2)
    for place in np.ndindex(2, 2):
        assert found[place] == env.q(observations[place], actions[place], 0.9)


def test_probes_are_made_by_name_and_pass_gymnasiums_own_check():
    from gymnasium.utils.env_checker import check_env

    for probe in PROBES:
        for kind in ("Discrete", "Continuous"):
            env = making.make(f"Probe/{probe.__name__}{kind}-v0")
            assert isinstance(env, gym.Env)
            assert type(env.unwrapped) is probe
            assert env.unwrapped.continuous == (kind == "Continuous")
            check_env(env.unwrapped, skip_render_check=True)
