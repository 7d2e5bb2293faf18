"""The dying-flag finder: planted flags are found, chance is not, and real games show what we say they show."""

import numpy as np
import pytest

from rlpd_gx.envs import atari
from rlpd_gx.envs.atari.dying import NEVER, search, steps_to_event, validate
from rlpd_gx.envs.atari.fatal import fatalities, way_out
from rlpd_gx.envs.atari.finding import find
from rlpd_gx.envs.atari.games import Flag, span
from rlpd_gx.envs.atari.recording import Recording, record

LAG = 9
NO_ESCAPES = np.zeros((0, 128), np.uint8)


def planted(seed=0, events=60, announced=1.0):
    """Play that dies every 50 to 120 steps; [40] is 7 for the last 9 steps of most lives, [41] a counter down.

    [50] is 3 half the time anyway, and [60] is 9 before the event but in other steps too.
    """
    rng = np.random.default_rng(seed)
    lives = []
    for _ in range(events):
        steps = int(rng.integers(50, 120))
        ram = rng.integers(0, 256, size=(steps, 128), dtype=np.uint8)
        ram[:, 40] = rng.integers(0, 6, size=steps)
        ram[:, 41] = 0
        ram[:, 50] = rng.choice([2, 3], size=steps)
        ram[:, 60] = rng.choice([1, 9], p=[0.8, 0.2], size=steps)
        if rng.random() < announced:
            ram[-LAG - 1 : -1, 40] = 7
            ram[-LAG - 1 : -1, 41] = np.arange(200, 200 - LAG, -1)
        ram[-LAG - 1 : -1, 60] = 9
        event = np.zeros(steps, bool)
        event[-1] = True
        lives.append((ram, event))
    games = np.repeat(np.arange(events) // 3, [len(event) for _, event in lives])
    return Recording(np.concatenate([r for r, _ in lives]), np.concatenate([e for _, e in lives]), games)


def test_steps_to_the_event_stop_at_the_end_of_a_game():
    event = np.array([0, 0, 1, 0, 0, 0, 1, 0], bool)
    game = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    ahead = steps_to_event(Recording(np.zeros((8, 128), np.uint8), event, game))
    assert ahead.tolist() == [2, 1, 0, NEVER, NEVER, 1, 0, NEVER]


def test_a_planted_flag_is_found_with_its_lead():
    flags, judged = search(planted(), LAG + 2, NO_ESCAPES)
    assert flags == (Flag(40, (7,)),)
    assert (judged.precision, judged.recall, judged.lead_steps) == (1, 1, LAG)
    fresh = validate(flags, planted(seed=1), LAG + 2)
    assert (fresh.precision, fresh.recall, fresh.lead_steps, fresh.events) == (1, 1, LAG, 60)


def test_a_counter_becomes_an_unbroken_run():
    counter = planted()
    counter.ram[:, 40] = 0
    flags, _ = search(counter, LAG + 2, NO_ESCAPES)
    assert flags == (Flag(41, span(200 - LAG + 1, 200)),)
    assert str(flags[0]) == "[41] = 192-200"


def test_what_is_also_seen_in_escapes_announces_nothing():
    escapes = np.zeros((3, 128), np.uint8)
    escapes[1, 40], escapes[2, 41] = 7, 199
    flags, _ = search(planted(), LAG + 2, escapes)
    assert flags == (Flag(41, (*span(200 - LAG + 1, 198), 200)),)


def test_a_rare_value_beside_a_common_run_is_left_to_chance():
    counter = planted()
    counter.ram[:, 40] = 0
    counter.ram[counter.events[:12] - 1, 41] = 90
    counter.ram[steps_to_event(counter) > 40, 41] = 140  # so that the gap in between is no skipped count
    flags, judged = search(counter, LAG + 2, NO_ESCAPES)
    assert flags == (Flag(41, span(200 - LAG + 1, 200)),)
    assert judged.precision == 1


def test_what_is_not_announced_costs_recall_and_false_alarms_cost_precision():
    half = validate((Flag(40, (7,)),), planted(announced=0.5, events=200), LAG + 2)
    assert half.precision == 1
    assert half.recall == pytest.approx(0.5, abs=0.1)
    alarms = validate((Flag(60, (9,)),), planted(events=200), LAG + 2)
    assert alarms.recall == 1
    assert alarms.precision == pytest.approx(0.43, abs=0.08)  # 9 steps and a few before, of 9 + a fifth of 75
    late = validate((Flag(40, (7,)),), planted(), 4)  # flagged earlier than the window allows
    assert late.precision == pytest.approx(4 / LAG)


def test_the_flag_of_one_death_does_not_announce_the_next():
    recording = planted(announced=0.0, events=100)
    first = recording.events[::2]
    for lead in range(1, LAG + 1):
        recording.ram[first - lead, 40] = 7
    judged = validate((Flag(40, (7,)),), recording, window=300)  # reaches back over several deaths
    assert judged.recall == 0.5
    assert judged.lead_steps == LAG


def test_nothing_is_found_where_there_is_nothing():
    blind = planted(announced=0.0)
    assert search(blind, LAG + 2, NO_ESCAPES) is None


def test_death_is_certain_in_demon_attack_long_before_it_is_counted():
    deaths = fatalities(atari.make("DemonAttack"), 3, 2000, seed=11)
    assert [14 <= death.lag <= 18 for death in deaths] == [True] * 3
    flag = Flag(63, (3,))
    for death in deaths:
        shown = [flag(ram) for ram in death.ram]
        first = shown.index(True)
        assert all(shown[first:])
        assert abs(len(shown) - first - death.lag) <= 2  # the flag comes with the fatal moment
        assert len(death.escape) > 5
        assert not any(flag(ram) for ram in death.escape)


def test_a_way_out_is_one():
    env = atari.make("Asterix")
    env.reset(seed=0)
    plan = way_out(env, env.clone(), 20, np.random.default_rng(0))
    env.reset(seed=0)
    assert not any(env.step(action)[4]["unsafe_event"] for action in plan)


def test_the_finder_finds_what_is_known_of_demon_attack():
    found = find("DemonAttack", events=12, steps=3000, lag_events=1, seed=3)
    assert found.flags == atari.GAMES["DemonAttack"].dying
    assert found.checked.precision == found.checked.recall == 1
    assert all(14 <= lag <= 18 for lag in found.lags)
    assert found.depth < 14  # without the flag it would take the whole lag


@pytest.mark.parametrize("game", ["Alien", "Asterix", "ChopperCommand", "Seaquest"])
def test_flags_hold_on_deaths_nobody_looked_at(game):
    known = atari.GAMES[game]
    fresh = record(atari.make(game), events=8, steps=2500, seed=1234)
    window = int(known.evidence.lag_steps) + 4
    seen = validate(known.dying, fresh, window)
    assert seen.events >= 4
    assert seen.precision >= 0.97
    assert seen.recall == 1
