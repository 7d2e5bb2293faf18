"""Aggregates of scores, against definitions written out."""

import numpy as np
import pytest

from rlpd_gx.metrics import scores


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
