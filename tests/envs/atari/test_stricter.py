"""RAM rules moved inwards: what they allow only shrinks, and a scan goes down in steps instead of at once."""

import numpy as np
import pytest

from rlpd_gx.envs import atari
from rlpd_gx.envs.description import describe
from rlpd_gx.errors import GxError

DELTAS = (0.0, 0.01, 0.5, 1.0, 2.0, 5.0, 10.0)


def visited(game, steps=400, seed=3):
    """RAM of now and of a step before, in random play."""
    env, chance = atari.make(game), np.random.default_rng(seed)
    env.reset(seed=seed)
    for _ in range(steps):
        yield env.ram(), env.previous_ram()
        if env.step(int(chance.integers(env.action_space.n)))[2]:
            env.reset()


def stricter(game):
    """The rules of a game for each delta."""
    parts = atari.RamRules(atari.make(game)).parts
    return [[describe(f"Atari/{game}-objects").stricter(part, delta) for part in parts] for delta in DELTAS]


@pytest.mark.parametrize("game", ["Seaquest", "Pong", "Breakout", "MsPacman", "Freeway"])
def test_a_stricter_rule_allows_less_and_less(game):
    scanned = stricter(game)
    shares = np.zeros(len(DELTAS))
    for ram, was in visited(game):
        allowed = np.array(
            [np.all([rule.margins(ram, was) >= 0 for rule in rules], axis=0) for rules in scanned]
        )
        assert (allowed[:-1] >= allowed[1:]).all()
        shares += allowed.mean(axis=1)
    assert shares[0] > shares[-1] > 0, shares
    assert shares[1] > 0.9 * shares[0], shares  # a hundredth of a step is not everything


def test_things_are_kept_as_many_pixels_further_away_as_the_rule_was_moved():
    """A shark comes from the right at 2 pixels a step: from where on is it forbidden to go right?"""
    env = atari.make("Seaquest")
    (contact,) = atari.RamRules(env, ["contact"]).parts
    right = env.action_meanings.index("RIGHT")

    def forbidden(rule, x):
        ram = np.zeros(128, np.uint8)
        ram[36], ram[30], ram[70], ram[97] = 4, 76 + x, 76, 137 - 33
        was = ram.copy()
        was[30] += 2
        return rule.margins(ram, was)[right] < 0

    furthest = {
        delta: max(
            x for x in range(60) if forbidden(describe("Atari/Seaquest-objects").stricter(contact, delta), x)
        )
        for delta in (0, 1, 4)
    }
    assert furthest[1] - furthest[0] == 1, furthest
    assert furthest[4] - furthest[0] == 4, furthest


def test_a_resource_is_kept_in_hand_and_a_place_that_blocks_stays_as_it_is():
    oxygen, surface = atari.RamRules(atari.make("Seaquest"), ["oxygen", "no diver on board"]).parts
    ram = np.zeros(128, np.uint8)
    ram[62], ram[97], ram[102] = (
        1,
        93,
        4,
    )  # a diver on board; 20 steps to the surface and 6 more; 32 steps of oxygen
    for delta, forbidden in ((0, False), (4, False), (5, True), (10, True)):
        rule = describe("Atari/Seaquest-objects").stricter(oxygen, delta)
        assert (rule.margins(ram, ram) < 0).any() == forbidden, delta
    assert describe("Atari/Seaquest-objects").stricter(surface, 10).fingerprint == surface.fingerprint


def test_rules_that_do_not_tell_how_close_they_are_are_not_scanned():
    env = atari.make("Freeway")
    with pytest.raises(GxError, match=r"does not say how far .* use a margin rule"):
        describe("Atari/Freeway-objects").stricter(atari.Lookahead(env), 1.0)
