"""Quick look-ahead: the same verdicts for less simulation, in games whose tables are good enough for it."""

import json

import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.envs.atari import GAMES, Lookahead, QuickLookahead, make
from rlpd_gx.envs.atari.ram_rules import NothingNear

QUICK = [name for name, game in GAMES.items() if game.reach]


def test_games_that_were_not_found_fit_for_it_keep_the_whole_look_ahead():
    env = make("Assault")
    assert QUICK
    assert QuickLookahead(env).fingerprint == Lookahead(env).fingerprint
    quick = make(QUICK[0])
    assert QuickLookahead(quick).fingerprint != Lookahead(quick).fingerprint


@pytest.mark.parametrize("name", QUICK)
def test_it_simulates_less_and_what_it_lets_pass_can_be_survived(name):
    env = make(name)
    whole, quick = Lookahead(env), QuickLookahead(env)
    guardians = [gx.Guardian(env.action_space, rule, embedding=env.embedding) for rule in (whole, quick)]
    chance, asked, allowed, spent = np.random.default_rng(5), 0, 0, [0, 0]
    env.reset(seed=5)
    for step in range(120):
        action = int(chance.integers(env.action_space.n))
        if step % 4 == 0:
            for i, (rule, guardian) in enumerate(zip((whole, quick), guardians, strict=True)):
                before = rule.simulated_steps
                verdict = guardian.certify(env, action)
                spent[i] += rule.simulated_steps - before
            if quick.search.harmless(env, action):
                asked += 1
                # A whole look-ahead tries simple plans only, and finds some places inevitable that are not.
                allowed += guardians[0].certify(env, action).status == "allowed" or survives(
                    env, guardians[1], action, chance
                )
        *_, over, _, _ = env.step(guardians[1].certify(env, action).action)
        if over:
            env.reset()
    assert spent[1] < spent[0]
    assert asked > 0
    assert allowed == asked
    assert not verdict.inevitable


def survives(env, guardian, action, chance, steps=40):
    """Whether random play under the guard meets no unsafe event after the action; the game is put back."""
    here, safe = env.clone(), True
    for _ in range(steps):
        *_, terminated, _, info = env.step(action)
        safe = safe and not info["unsafe_event"]
        if terminated or not safe:
            break
        action = guardian.certify(env, int(chance.integers(env.action_space.n))).action
    env.restore_clone(here)
    return safe


def test_a_ball_that_comes_down_far_away_is_near():
    """Breakout's table must tell a ball that is late from one that is not, or it could end a search too early."""
    env = make("Breakout")
    env.reset(seed=0)
    near = NothingNear(env, 1)
    ram = np.array(env.ram())

    def at(x, y, paddle):
        image = ram.copy()
        image[[99, 101, 72, 70]] = x + 49, y - 9, paddle + 47, 188 - paddle
        return image

    assert near(at(80, 110, 76), at(80, 106, 76))  # comes down slowly above the paddle
    assert not near(at(20, 150, 140), at(24, 140, 140))  # far away, and soon here
    assert not near(at(80, 191, 10), at(80, 183, 10))  # has passed
    assert near(at(80, 150, 76), at(80, 154, 76))  # goes up, and any place can be reached before it is back


def test_a_resumed_game_goes_on_the_same_way():
    def play(env, guardian, steps, chance):
        story = []
        for _ in range(steps):
            verdict = guardian.certify(env, int(chance.integers(env.action_space.n)))
            env.step(verdict.action)
            story.append((int(verdict.action), str(verdict.status)))
        return story

    def made():
        env = make("Seaquest")
        rule = QuickLookahead(env, 16)
        return env, rule, gx.Guardian(env.action_space, rule, embedding=env.embedding)

    env, rule, guardian = made()
    env.reset(seed=1)
    chance = np.random.default_rng(1)
    play(env, guardian, 120, chance)
    snapshot, memory, state = env.snapshot(), json.dumps(rule.memory()), chance.bit_generator.state
    rest = play(env, guardian, 80, chance)
    other, again, second = made()
    other.reset(seed=9)
    other.restore(snapshot)
    again.restore_memory(json.loads(memory))
    chance.bit_generator.state = state
    assert play(other, second, 80, chance) == rest
    assert again.simulated_steps == rule.simulated_steps
