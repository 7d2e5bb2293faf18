"""TD error, ensemble variance, optimism and collapse, against numbers worked out by hand."""

import numpy as np
import pytest

from rlpd_gx.metrics import values
from rlpd_gx.metrics.subject import Unavailable


def test_td_error_is_the_mean_distance_to_the_target_in_units_of_the_target() -> None:
    q, target = np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([2.0, 4.0])
    assert values.td_error(q, target) == {"td_error": 1.5, "td_error_scaled": 0.5}
    assert values.td_error(10 * q, 10 * target)["td_error_scaled"] == pytest.approx(0.5)  # free of scale
    assert values.td_error(np.stack([target, target]), target)["td_error"] == 0


def test_ensemble_variance_is_over_the_critics_not_over_states() -> None:
    q = np.array([[0.0, 10.0], [2.0, 10.0]])
    found = values.q_variance(q)
    assert found["q_variance"] == 0.5  # variances 1 and 0
    assert found["q_variance_scaled"] == pytest.approx(0.5 / 5.5**2)
    # states differ, critics agree
    assert values.q_variance(np.array([[1.0, 5.0], [1.0, 5.0]]))["q_variance"] == 0


def test_optimism_has_a_sign_and_leaves_out_unknown_returns() -> None:
    returns = np.array([1.0, 2.0, np.nan])
    assert values.optimism(np.array([2.0, 3.0, 99.0]), returns)["optimism"] == 1.0
    assert values.optimism(np.array([0.0, 1.0, 99.0]), returns)["optimism_scaled"] == pytest.approx(-1 / 1.5)
    with pytest.raises(Unavailable, match="more than 5% of the discounted return"):
        values.optimism(np.zeros(1), np.array([np.nan]))


def test_monte_carlo_returns() -> None:
    assert values.monte_carlo([1.0, 0.0, 4.0], 0.5, terminated=True).tolist() == [2.0, 2.0, 4.0]
    cut = values.monte_carlo(np.ones(10), 0.5, terminated=False)
    # 0.5^k <= 5% needs 5 steps or more to the cut
    assert np.isnan(cut).tolist() == [False] * 6 + [True] * 4
    assert cut[0] == pytest.approx(2 - 2 * 0.5**10)


def test_collapse_is_the_maximum_drawdown() -> None:
    assert values.collapse([0, 10, 4, 12, 9])["collapse"] == 6  # from 10 to 4, not from 12 to 9
    assert values.collapse([0, 10, 4, 12, 9])["collapse_share"] == 0.6
    assert values.collapse([100, 101, 99.0, 100])["collapse_share"] < 0.02  # noise is no collapse
    assert values.collapse([-5, -9.0]) == {"collapse": 4.0, "collapse_share": 0.0}
    assert values.collapse([1, 2, 3])["collapse"] == 0  # a curve that only rises
    assert values.collapse([5])["collapse"] == 0
    assert values.collapse([9, 0, 8])["collapse"] == 9  # where the last value alone would show a fall of 1
