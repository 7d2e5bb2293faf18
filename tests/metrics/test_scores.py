"""Aggregates of scores, against definitions written out."""

import numpy as np
import pytest

from rlpd_gx.metrics import scores
from rlpd_gx.metrics.atari100k import RANDOM_AND_HUMAN


def test_normalised_scores() -> None:
    assert scores.normalised(10.0, 10.0, 20.0) == 0.0
    assert scores.normalised(25.0, 10.0, 20.0) == 1.5


def test_aggregates_are_what_they_say() -> None:
    runs = np.array([[0.0, 2.0], [3.0, 5.0], [100.0, 200.0], [1.0, 1.0]])
    ordered = sorted(runs.ravel())
    assert scores.mean(runs) == np.mean(ordered)
    assert scores.median(runs) == np.median([1.0, 4.0, 150.0, 1.0])
    assert scores.iqm(runs) == np.mean(ordered[2:-2])
    assert scores.iqm(runs) < scores.mean(runs)  # one outlier does not decide it


def test_intervals_come_from_the_generator_given_and_narrow_with_seeds() -> None:
    truth = np.random.default_rng(5)

    def width(seeds: int) -> float:
        runs = {f"task {i}": truth.normal(i, 1.0, seeds).tolist() for i in range(6)}
        low, high = scores.bootstrap(runs, scores.mean, np.random.default_rng(0))
        assert (low, high) == scores.bootstrap(runs, scores.mean, np.random.default_rng(0))
        assert low < scores.mean(np.array(list(runs.values()))) < high
        return high - low

    assert width(50) < 0.6 * width(5)


def test_one_seed_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two seeds"):
        scores.bootstrap({"task": [1.0]}, scores.mean, np.random.default_rng(0))


def test_the_table_has_the_26_games_and_gives_0_for_random_and_1_for_human() -> None:
    assert len(RANDOM_AND_HUMAN) == 26
    for game, (random, human) in RANDOM_AND_HUMAN.items():
        assert human > random
        assert scores.normalised_atari(game, random) == 0
        assert scores.normalised_atari(game, human) == 1
    # Pong goes from -20.7 to 14.6: a score of 0 is above half of the way
    assert scores.normalised_atari("Pong", 0.0) == pytest.approx(20.7 / 35.3)


def test_the_table_agrees_with_the_games_we_have() -> None:
    from rlpd_gx.envs.atari.games import GAMES

    assert set(RANDOM_AND_HUMAN) == set(GAMES)


def test_a_summary_separates_games_above_and_below_human() -> None:
    runs = {"good": [2.0, 3.0], "bad": [0.1, 0.3], "even": [0.9, 1.1]}
    found = scores.summary(runs, np.random.default_rng(0))
    assert set(found["agent_optimal"]["points"]) == {"good", "even"}
    assert set(found["human_optimal"]["points"]) == {"bad"}
    assert found["all"]["mean"] == pytest.approx(7.4 / 6)
    assert found["human_optimal"]["mean"] == pytest.approx(0.2)
    assert not any(key.endswith("_interval") for key in found["all"])  # two seeds claim nothing
    many = {task: points * 3 for task, points in runs.items()}
    enough = scores.summary(many, np.random.default_rng(0), resamples=200)
    low, high = enough["all"]["iqm_interval"]
    assert low <= enough["all"]["iqm"] <= high
    assert "mean" not in scores.summary({"bad": [0.1] * 5}, np.random.default_rng(0), 10)["agent_optimal"]
