"""Look-ahead in Atari: exact, undisturbing, and worth its name."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.envs.atari import GAMES, make
from rlpd_gx.envs.atari.lookahead import Lookahead, emulator_state


def guarded(name, depth, **settings):
    env = make(name, **settings)
    rule = Lookahead(env, depth)
    return env, rule, gx.Guardian(env.action_space, rule, embedding=env.embedding)


@pytest.mark.parametrize("name", GAMES)
def test_the_real_game_is_not_disturbed_and_goes_as_simulated(name):
    env, rule, guardian = guarded(name, 6)
    twin, chance = make(name), np.random.default_rng(0)
    assert np.array_equal(env.reset(seed=3)[0], twin.reset(seed=3)[0])
    for _ in range(25):
        verdict = guardian.certify(env, int(chance.integers(env.action_space.n)))
        observation, reward, terminated, truncated, info = env.step(verdict.action)
        expected = twin.step(verdict.action)
        assert np.array_equal(observation, expected[0])
        assert (reward, terminated, truncated, info) == expected[1:]
        assert np.array_equal(env.render(), twin.render())
        if verdict.status != "inevitable":
            foreseen = rule.memory()["lanes"][0]["plans"]
            assert rule.search.model.here(env).identity.hex() in foreseen  # the very bytes of the emulator
        if terminated:
            env.reset()
            twin.reset()
    assert guardian.audit.tally.fallback == 0


@pytest.mark.parametrize("name", ["Breakout", "Qbert"])
def test_a_random_policy_under_look_ahead_loses_no_life(name):
    events = {}
    for guard in (True, False):
        env, _, guardian = guarded(name, 20)
        env.reset(seed=0)
        chance, events[guard] = np.random.default_rng(0), 0
        for _ in range(200):
            action = int(chance.integers(env.action_space.n))
            _, _, over, _, info = env.step(guardian.certify(env, action).action if guard else action)
            events[guard] += info["unsafe_event"]
            if over:
                env.reset()
    assert events[True] == 0 < events[False]


def test_a_chicken_that_wants_across_gets_there_unhurt():
    env, _, guardian = guarded("Freeway", 24)
    env.reset(seed=0)
    up, hits, crossed = env.action_meanings.index("UP"), 0, 0
    for _ in range(150):
        *_, info = env.step(guardian.certify(env, up).action)
        hits += info["unsafe_event"]
        crossed += info["raw_reward"] > 0
    assert hits == 0 < crossed


@pytest.mark.parametrize("seed", [0, 1])
def test_on_seaquest_nobody_runs_out_of_oxygen_who_could_have_surfaced(seed):
    """At the bottom, with oxygen for about 40 steps, a diver on board, and 24 steps of UP to the surface."""
    oxygen, divers = 102, 62
    suffocated = {}
    for guard in (True, False):
        env = make("Seaquest")
        guardian = gx.Guardian(env.action_space, Lookahead(env), embedding=env.embedding)
        env.reset(seed=seed)
        for _ in range(60):
            env.step(env.action_meanings.index("DOWN"))
        env.ale.setRAM(oxygen, 5)
        env.ale.setRAM(divers, 1)
        env.step(0)
        chance, lives, suffocated[guard] = np.random.default_rng(seed), env.lives, 0
        for _ in range(70):
            action, before = int(chance.integers(env.action_space.n)), env.ram()
            env.step(guardian.certify(env, action).action if guard else action)
            suffocated[guard] += bool(env.lives < lives and before[oxygen] == 0)
            lives = env.lives
    assert suffocated[True] == 0 < suffocated[False]


def test_complete_safe_sets_cost_a_verdict_nothing_more():
    env, rule, guardian = guarded("MsPacman", 12)
    env.reset(seed=0)
    complete = guardian.safe_sets([env])
    spent = rule.simulated_steps
    verdict = guardian.certify(env, 3)
    assert complete.tested.all()
    assert rule.simulated_steps == spent > 0
    assert verdict.safe_set.tested.sum() == 1
    assert complete.allowed[0, verdict.action]


def test_actions_that_lead_to_the_same_place_are_simulated_once():
    """In Qbert nothing can be steered while he is in the air: the second action costs its own step only."""
    env, rule, guardian = guarded("Qbert", 24)
    env.reset(seed=0)
    env.step(2)
    guardian.certify(env, 0)
    spent = rule.simulated_steps
    guardian.certify(env, 1)
    assert rule.simulated_steps == spent + 1


@pytest.mark.parametrize("name", ["Breakout", "Seaquest"])
def test_every_outcome_of_a_sticky_action_is_foreseen(name):
    env, rule, guardian = guarded(name, 6, sticky=0.5)
    env.reset(seed=0)
    chance, previous = np.random.default_rng(0), 0
    for _ in range(40):
        action = int(chance.integers(env.action_space.n))
        verdict = guardian.certify(env, action, context={"previous_action": previous})
        previous = int(verdict.action)
        *_, info = env.step(previous)
        if verdict.status != "inevitable":
            assert rule.search.model.here(env).identity.hex() in rule.memory()["lanes"][0]["plans"]
            assert not info["unsafe_event"]


def test_a_resumed_game_goes_on_the_same_way():
    """Emulator and memory from a checkpoint, in new objects: the same verdicts, the same count of simulated steps."""

    def play(env, guardian, steps, chance):
        story = []
        for _ in range(steps):
            verdict = guardian.certify(env, int(chance.integers(env.action_space.n)))
            env.step(verdict.action)
            story.append((int(verdict.action), str(verdict.status)))
        return story

    env, rule, guardian = guarded("Breakout", 16)
    env.reset(seed=1)
    chance = np.random.default_rng(1)
    play(env, guardian, 60, chance)
    snapshot, memory, state = env.snapshot(), json.dumps(rule.memory()), chance.bit_generator.state
    rest = play(env, guardian, 60, chance)
    other, again, second = guarded("Breakout", 16)
    other.reset(seed=9)
    other.restore(snapshot)
    again.restore_memory(json.loads(memory))
    chance.bit_generator.state = state
    assert play(other, second, 60, chance) == rest
    assert again.simulated_steps == rule.simulated_steps
    assert again.fingerprint == rule.fingerprint


def test_wrapped_and_vectorised_environments():
    env = make("Pong")
    single = gx.GuardedEnv(env, Lookahead(env, 4), state=emulator_state, embedding=env.embedding)
    single.reset(seed=0)
    assert single.step(2)[-1]["guardian"].safe_set.tested.sum() == 1
    many = gym.vector.SyncVectorEnv([lambda: make("Pong")] * 2)
    both = gx.GuardedVectorEnv(many, Lookahead(env, 4), state=emulator_state, embedding=env.embedding)
    both.reset(seed=0)
    for _ in range(3):
        verdicts = both.step(np.array([2, 3]))[-1]["guardian"]
    assert [v.status for v in verdicts] == ["allowed", "allowed"]
    with pytest.raises(gx.GxError, match="not CartPoleEnv"):
        emulator_state(gym.make("CartPole-v1"), None, {})


def test_the_actions_to_go_on_with_can_be_named():
    env = make("Pong")
    assert Lookahead(env, 4, continuations=["NOOP", "LEFT"]).search.held == (0, 3)
    with pytest.raises(gx.GxError, match="Pong has no action 'JUMP'"):
        Lookahead(env, 4, continuations=["JUMP"])
    assert Lookahead(env, 4).fingerprint != Lookahead(make("Pong", frame_skip=2), 4).fingerprint


def test_the_example_in_the_documentation_runs(capsys):
    page = (Path(__file__).parents[3] / "docs" / "atari.md").read_text().partition("## Look-ahead")[2]
    exec(page.partition("```python")[2].partition("```")[0], {"gx": gx})
    assert "proposals" in capsys.readouterr().out
