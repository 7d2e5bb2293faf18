"""RAM rules: the same as a slow reference, never an empty mask without the flag, batched, combined with look-ahead."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.atari.slow_objects import Table

import rlpd_gx as gx
from rlpd_gx.envs import atari
from rlpd_gx.envs.atari.games import TABLES
from rlpd_gx.errors import GxError
from rlpd_gx.guardian import Guardian

RESULTS = Path(__file__).parents[3] / "results"
RULED = [name for name, game in atari.GAMES.items() if game.rules]


def guarded(game, **settings):
    env = atari.make(game, **settings)
    return env, Guardian(env.action_space, atari.RamRules(env), embedding=env.embedding)


@pytest.mark.parametrize("game", RULED)
def test_a_mask_is_empty_only_where_the_verdict_says_inevitable(game):
    env, guardian = guarded(game)
    env.reset(seed=1)
    rng = np.random.default_rng(1)
    for _ in range(30):
        proposed = int(rng.integers(env.action_space.n))
        allowed = np.asarray(guardian.safe_sets([env]).allowed)[0]
        verdict = guardian.certify(env, proposed)
        assert verdict.inevitable == (not allowed.any())
        assert verdict.inevitable or allowed[verdict.action]
        *_, terminated, truncated, _ = env.step(verdict.action)
        if terminated or truncated:
            env.reset()


@pytest.mark.parametrize("game", ["Freeway", "Asterix", "Seaquest", "Assault", "DemonAttack"])
def test_collisions_are_those_of_the_slow_reference(game):
    env, table = atari.make(game), Table(game)
    rules = {part.name: part for part in atari.RamRules(env).parts}
    rows = [row for row in table.content["rules"] if row["kind"] == "collision"]
    env.reset(seed=2)
    rng = np.random.default_rng(2)
    met = compared = 0
    while compared < 8 and env._play.steps < 300:
        ram, was = env.ram(), env.previous_ram()
        for row in rows:
            margins = rules[row["name"]].margins(ram, was)
            if margins.min() < 0 or env._play.steps % 100 == 0:
                slow = np.array(table.collision_steps(row, env.action_meanings, ram, was)) - row["horizon"]
                np.testing.assert_allclose(margins, slow, atol=1e-6)
                compared += 1
                met += margins.min() < 0
        if env.step(int(rng.integers(env.action_space.n)))[2]:
            break
    assert met


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=128, max_size=128), st.binary(min_size=128, max_size=128), st.sampled_from(RULED))
def test_margins_are_finite_on_any_ram(now, before, game):
    ram, was = (np.frombuffer(image, np.uint8) for image in (now, before))
    env = _made(game)
    for part in _rules(game).parts:
        margins = part.margins(ram, was)
        assert margins.shape == (env.action_space.n,)
        assert np.isfinite(margins).all()
        np.testing.assert_array_equal(part.margins(ram.copy(), was.copy()), margins)  # no memory in a verdict


_MADE: dict = {}


def _made(game):
    if game not in _MADE:
        env = atari.make(game)
        _MADE[game] = env, atari.RamRules(env)
    return _MADE[game][0]


def _rules(game):
    return _MADE[game][1]


def test_a_batch_is_judged_as_its_members_are():
    envs = [atari.make("Freeway") for _ in range(3)]
    rule = atari.RamRules(envs[0])
    guardian = Guardian(envs[0].action_space, rule, embedding=envs[0].embedding)
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
        for _ in range(30 + 7 * seed):
            env.step(1)
    whole = np.asarray(guardian.safe_sets(envs).allowed)
    alone = [np.asarray(guardian.safe_sets([env]).allowed)[0] for env in envs]
    np.testing.assert_array_equal(whole, alone)


def test_used_like_look_ahead_and_named_in_the_audit():
    env = atari.make("Seaquest")
    safe = gx.GuardedEnv(env, atari.RamRules(env), state=atari.emulator_state, embedding=env.embedding)
    safe.reset(seed=0)
    for _ in range(30):
        safe.step(env.action_meanings.index("UP"))  # a new submarine has no diver on board
    text = str(safe.audit)
    assert "no diver on board" in text
    assert {part.name for part in atari.RamRules(env).parts} >= {"contact", "oxygen", "no diver on board"}


def test_oxygen_sends_the_submarine_up_in_time():
    env = atari.make("Seaquest")
    (oxygen,) = atari.RamRules(env, ["oxygen"]).parts
    ram = np.zeros(128, np.uint8)
    ram[62], ram[97] = 1, 93  # a diver on board, at a depth of 80 pixels: 20 steps at 4 pixels
    ups = np.array(["UP" in name for name in env.action_meanings])
    for units, forbidden in ((64, False), (4, False), (3, True), (1, True)):
        ram[102] = units
        margins = oxygen.margins(ram, ram)
        assert (margins[ups] >= 0).all()
        assert (margins[~ups] < 0).all() == forbidden
    assert oxygen.shifted(-20).shift == -20


def test_the_paddle_must_be_able_to_reach_the_ball():
    env = atari.make("Pong")
    (ball,) = atari.RamRules(env).parts
    up, down = env.action_meanings.index("RIGHT"), env.action_meanings.index("LEFT")
    ram, was = np.zeros((2, 128), np.uint8)
    for image, x in ((was, 170), (ram, 176)):  # the ball is 12 pixels from the paddle, at 6 pixels a step
        image[[49, 54, 50, 51, 4]] = x, 60, 100, 120, 120
    margins = ball.margins(ram, was)
    assert margins[up] > margins[0] > margins[down]  # it is above the paddle
    assert margins[down] < 0
    was[49] = 182  # flies away
    assert (ball.margins(ram, was.copy()) >= 0).all()


def test_combined_with_look_ahead_clear_cases_cost_no_simulation():
    def simulated(combine):
        env = atari.make("Freeway")
        ahead = atari.Lookahead(env, depth=6)
        guardian = Guardian(env.action_space, combine(atari.RamRules(env), ahead), embedding=env.embedding)
        env.reset(seed=0)
        for _ in range(60):
            env.step(guardian.certify(env, 1).action)
        return ahead.simulated_steps

    alone, either = simulated(lambda ram, ahead: ahead), simulated(lambda ram, ahead: ram | ahead)
    assert either < alone / 2


def test_rules_in_a_replayed_log_are_those_of_the_live_game():
    import gymnasium as gym

    theirs = gym.make("ALE/Freeway-v5", frameskip=4, repeat_action_probability=0.0).unwrapped
    ours, guardian = guarded("Freeway", noop_max=0)
    ours.reset(seed=0)
    theirs.reset(seed=0)
    forbidden = 0
    for _ in range(120):
        sets = [np.asarray(guardian.safe_sets([state]).allowed)[0] for state in (ours, theirs)]
        np.testing.assert_array_equal(*sets)
        forbidden += (~sets[0]).any()
        ours.step(1)
        theirs.step(1)
    assert forbidden > 5


def test_cars_do_not_hit_a_guarded_chicken():
    env, guardian = guarded("Freeway")

    def hits(guard):
        rng = np.random.default_rng(0)
        env.reset(seed=0)
        count = 0
        for _ in range(700):
            action = int(rng.integers(3))
            *_, info = env.step(guardian.certify(env, action).action if guard else action)
            count += info["unsafe_event"]
        return count

    assert hits(False) >= 5 * max(hits(True), 0.5)


def test_a_changed_table_changes_the_fingerprint(tmp_path):
    text = (TABLES / "Freeway.toml").read_text()
    other = tmp_path / "Freeway.toml"
    other.write_text(text.replace("horizon = 8", "horizon = 7"))
    rules = [atari.RamRules(atari.make(name)) for name in ("Freeway", "freeway", str(other))]
    assert rules[0].fingerprint == rules[1].fingerprint != rules[2].fingerprint
    with pytest.raises(GxError, match="has no RAM rule 'speed'; it has car"):
        atari.RamRules(atari.make("Freeway"), ["speed"])


def test_the_committed_results_hold_what_is_promised():
    """No game with significantly more unsafe events under RAM rules than without a guard."""
    games = json.loads((RESULTS / "atari-ram-rules.json").read_text())["games"]
    assert set(games) == set(RULED)
    for name, game in games.items():
        high = game["times_fewer_interval"][1]
        assert high is None or high >= 1, name
