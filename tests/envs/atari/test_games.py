"""The table of games: complete, in agreement with the measurements, and its events are what happens."""

import json
from pathlib import Path

import numpy as np
import pytest

from rlpd_gx.envs import atari
from rlpd_gx.envs.atari.games import KNOCKED_BACK, LIFE_LOST, NEGATIVE_REWARD, Flag, Moment

FREEWAY_STUN, _ = atari.GAMES["Freeway"].knocked
MEASURED = json.loads((Path(__file__).parents[3] / "results" / "atari-flags.json").read_text())["games"]


def test_the_table_holds_the_26_games_and_what_was_measured():
    assert len(atari.GAMES) == 26
    assert set(MEASURED) == set(atari.GAMES)


@pytest.mark.parametrize("game", atari.GAMES.values(), ids=lambda game: game.name)
def test_a_row_is_what_was_measured(game):
    row, evidence = MEASURED[game.name], game.evidence
    assert game.event == row["event"]
    assert game.dying == tuple(Flag(flag["address"], tuple(flag["values"])) for flag in row["flags"])
    assert game.depth == row["depth"] > 0
    assert (evidence.events, evidence.lag_steps) == (row["events"], row["lag_steps"])
    assert (evidence.precision, evidence.recall) == (row["precision"] or 0, row["recall"] or 0)
    if game.dying:
        assert row["precision"] >= 0.95
        assert row["recall"] >= 0.5


def moment(lives=3, over=False, **ram):
    image = np.zeros(128, np.uint8)
    for address, value in ram.items():
        image[int(address.strip("_"))] = value
    return Moment(image, lives, over)


def test_a_life_lost_is_a_counter_that_falls():
    game = atari.Game("Any", 4)
    assert game.event == LIFE_LOST
    assert game.unsafe(moment(3), moment(2), 0)
    assert not game.unsafe(moment(3), moment(4), -5)
    assert not game.unsafe(moment(3), moment(3), 0)
    assert game.unsafe(moment(0), moment(0, over=True), 0)  # the last life of BankHeist


def test_the_end_of_amidar_repeats_a_loss_already_counted():
    amidar = atari.GAMES["Amidar"]
    assert amidar.unsafe(moment(9), moment(8), 0)
    assert not amidar.unsafe(moment(8), moment(0, over=True), 0)


def test_points_lost_and_chickens_hit():
    pong, freeway = atari.GAMES["Pong"], atari.GAMES["Freeway"]
    assert (pong.event, freeway.event) == (NEGATIVE_REWARD, KNOCKED_BACK)
    assert pong.unsafe(moment(0), moment(0), -1)
    assert not pong.unsafe(moment(0), moment(0, over=True), 0)
    assert freeway.unsafe(moment(), moment(**{f"_{FREEWAY_STUN}": 91}), 0)
    assert not freeway.unsafe(moment(**{f"_{FREEWAY_STUN}": 91}), moment(**{f"_{FREEWAY_STUN}": 89}), 0)


def test_a_chicken_that_is_hit_is_pushed_back_against_the_stick():
    env = atari.make("Freeway")
    env.reset(seed=0)
    hits = pushed = free = 0
    for _ in range(300):  # always UP; [14] is the height
        before = int(env.ram()[14])
        *_, info = env.step(1)
        height, stunned = int(env.ram()[14]), env.ram()[FREEWAY_STUN] > 0
        hits += info["unsafe_event"]
        pushed += stunned and height < before
        free += not stunned and height < before and before < 170  # at the top it starts again
    assert hits >= 3
    assert pushed >= 5 * hits / 2
    assert free <= 2


def test_a_chicken_that_gets_across_was_not_hit():
    env = atari.make("Freeway")
    env.reset(seed=0)
    crossed = 0
    for _ in range(500):
        *_, reward, _, _, info = env.step(1)
        crossed += reward > 0
        assert not (reward and info["unsafe_event"])
    assert crossed >= 3


def test_two_falls_of_boxing_in_one_step_are_not_hidden_by_points_won():
    env = atari.make("Boxing")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    lost = 0
    for _ in range(600):
        *_, info = env.step(int(rng.integers(18)))
        assert info["unsafe_event"] or info["raw_reward"] >= 0
        lost += info["raw_reward"] < 0
    assert lost > 0


def test_oxygen_falls_under_water_and_a_life_is_lost_without_it():
    oxygen = atari.GAMES["Seaquest"].resources[0]
    assert oxygen.value == "ram[102]"
    env = atari.make("Seaquest")
    env.reset(seed=4)
    down = env.action_meanings.index("DOWN")
    stay_under = [
        env.action_meanings.index(name) for name in ("FIRE", "RIGHTFIRE", "LEFTFIRE", "RIGHT", "LEFT")
    ]
    rng = np.random.default_rng(1)
    left, lost = [], False
    while not lost:
        *_, info = env.step(down if len(left) < 60 else int(rng.choice(stay_under)))
        left.append(int(env.ram()[102]))
        lost = info["unsafe_event"]
    assert max(left) == oxygen.full
    under = left[60 : left.index(1, 60)]  # this submarine was not hit before
    assert set(np.diff(under)) == {0, -1}
    assert left[-1] == oxygen.empty


def test_flags():
    flag = Flag(5, (1, 2, 3, 9))
    assert str(flag) == "[5] = 1-3, 9"
    ram = np.zeros(128, np.uint8)
    assert not flag(ram)
    ram[5] = 9
    assert flag(ram)
    assert atari.Game("Any", 4, dying=(Flag(6, (4,)), flag)).is_dying(ram)
    assert not atari.Game("Any", 4).is_dying(ram)


def test_names_of_files():
    roms = {game.rom for game in atari.GAMES.values()}
    assert {"kung_fu_master", "up_n_down", "jamesbond", "qbert", "bank_heist"} <= roms
