"""Rules as a person combines and calls them."""

import operator
import re

import gymnasium as gym
import numpy as np
import pytest

import rlpd_gx as gx


@gx.ellipsoid_rule(name="speed")
def speed(observation):
    """At most 0.9 in any direction."""
    return np.ones(2), 0.9**2


@gx.bounds_rule(needs=("previous_action",))
def rate(observation, previous_action):
    return previous_action - 0.1, previous_action + 0.1


def plain(observation):
    return True


def test_a_decorated_rule_is_called_like_its_function():
    weights, limit = speed(np.zeros(2))
    assert weights.tolist() == [1, 1]
    assert limit == 0.9**2
    assert rate(None, previous_action=0.5) == (0.4, 0.6)
    assert gx.rule(lambda state, action: action > state)(1, 2)


@pytest.mark.parametrize("combine", [operator.and_, operator.or_])
@pytest.mark.parametrize(
    ("other", "says"),
    [
        (plain, "plain is not a rule but a function; decorate it, for example with @gx.rule"),
        (None, "None is not a rule; make one with gx.rule, gx.mask_rule, gx.bounds_rule, ..."),
        ([rate], "is not a rule; make one with gx.rule"),
    ],
)
def test_a_rule_is_combined_with_rules_only(combine, other, says):
    with pytest.raises(gx.GxError, match=re.escape(says)):
        combine(speed, other)
    with pytest.raises(gx.GxError, match=re.escape(says)):
        combine(speed & rate, other)


def test_a_rule_is_not_made_from_a_rule():
    with pytest.raises(gx.GxError, match="rule 'twice' needs a function, not Atom"):
        gx.rule(speed, name="twice")


def test_text_is_not_taken_for_a_list_of_letters():
    with pytest.raises(
        gx.GxError, match=re.escape("not the text 'previous_action'; write needs=['previous_action']")
    ):
        gx.rule(needs="previous_action")
    for rules in ("windy:speed", ["windy:speed"]):
        with pytest.raises(gx.GxError, match="'windy:speed' is text; give the rule itself"):
            gx.Guardian(gym.spaces.Box(-1, 1, (2,)), rules)
