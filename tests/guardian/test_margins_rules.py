"""Rules that give the margins of all actions at once."""

import gymnasium as gym
import numpy as np
import pytest

from rlpd_gx.errors import StopEpisode
from rlpd_gx.guardian import Guardian
from rlpd_gx.rules import margins_rule

SPACE = gym.spaces.Discrete(3)


def test_what_is_not_below_zero_is_allowed_and_thresholds_move():
    rule = margins_rule(lambda state: np.array([-1.0, 0.0, state]), name="margins")
    guardian = Guardian(SPACE, rule)
    assert guardian.safe_sets([2.0]).allowed.tolist() == [[False, True, True]]
    assert Guardian(SPACE, rule.shifted(1)).safe_sets([2.0]).allowed.tolist() == [[False, False, True]]
    verdict = guardian.certify(2.0, 0)
    assert verdict.action in (1, 2)


def test_where_nothing_is_allowed_the_largest_margin_runs():
    verdict = Guardian(SPACE, margins_rule(lambda state: np.array([-3.0, -1.0, -2.0]))).certify(0.0, 0)
    assert verdict.inevitable
    assert verdict.action == 1


@pytest.mark.parametrize("answer", [np.zeros(4), np.array([0.0, np.nan, 0.0]), None, 1.0])
def test_an_answer_that_is_none_lets_nothing_pass(answer):
    guardian = Guardian(SPACE, margins_rule(lambda state: answer, name="odd"))
    with pytest.raises(StopEpisode, match="rule 'odd' returned"):
        guardian.certify(0.0, 1)
