"""Predicates and margins over continuous actions as safe sets: asked again from the state that is stored."""

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlpd_gx as gx
from rlpd_gx.safe_sets import decode

SPACE = gym.spaces.Box(-1, 1, (2,), np.float32)
pytestmark = pytest.mark.filterwarnings("ignore:rule .* is not batched")


@gx.bounds_rule(name="bounds")
def bounds(state):
    return [-0.75, -0.75], [0.75, 0.75]  # which float32 holds exactly


@gx.rule(name="outside the disc")
def disc(state, action):
    return bool(np.hypot(*(action - state["centre"])) >= 0.5)


@gx.margin_rule(name="slow change", needs=("previous_action", "time"))
def slow(state, action, previous_action, time):
    return 1.5 + (time > 3) - float(np.abs(action - previous_action).sum())


coordinates = st.tuples(st.floats(-1, 1, width=32), st.floats(-1, 1, width=32)).map(
    lambda v: np.array(v, np.float32)
)


def allowed(centre, previous, time, action):
    return bool(
        np.all(np.abs(action) <= 0.75)
        and np.hypot(*(action - centre)) >= 0.5
        and 1.5 + (time > 3) - float(np.abs(action - previous).sum()) >= 0
    )


@given(coordinates, coordinates, st.integers(0, 6), st.lists(coordinates, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_stored_set_answers_as_the_rules_did(centre, previous, time, actions):
    guardian = gx.Guardian(SPACE, [bounds, disc, slow])
    verdict = guardian.certify(
        {"centre": centre}, actions[0], context={"previous_action": previous, "time": time}
    )
    found = decode(verdict.safe_set.encode()[None].repeat(len(actions), axis=0), verdict.safe_set.spec)
    expected = [allowed(centre, previous, time, action) for action in actions]
    assert found.contains(np.stack(actions)).tolist() == expected
    if verdict.status is gx.Status.PROJECTED:
        nearest = found.knowing(np.tile(verdict.action, (len(actions), 1))).nearest(np.stack(actions))
        assert nearest.found.all()
        for point, action, fine in zip(nearest.point, actions, expected, strict=True):
            assert allowed(centre, previous, time, point)
            assert not fine or (point == action).all()


def test_without_a_known_member_nothing_is_invented():
    guardian = gx.Guardian(SPACE, [disc])
    found = guardian.certify({"centre": np.zeros(2)}, np.ones(2, np.float32)).safe_set
    forbidden = np.zeros(2, np.float32)
    assert not found.nearest(forbidden).found
    assert found.knowing(np.ones(2)).nearest(forbidden).found
    assert found.everything().contains(forbidden)
    alone = found.only(np.array([0.1, 0.1], np.float32))
    assert alone.nearest(forbidden).point == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize("state", [{"centre": object()}, {"centre": np.zeros((40, 40))}])
def test_a_state_that_is_no_small_array_cannot_be_stored(state):
    free = gx.rule(lambda state, action: True, name="free")
    assert gx.Guardian(SPACE, free).certify(state, np.zeros(2, np.float32)).safe_set is None


def test_nothing_is_nearest_to_nan():
    """A network that has seen NaN proposes NaN: that raised IndexError in sets without rows."""
    guardian = gx.Guardian(SPACE, gx.rule(lambda state, action: True, name="anything"))
    found = guardian.safe_set(np.zeros(2)).nearest(np.array([np.nan, 0.0], np.float32))
    assert not found.found
    assert not found.empty
    assert np.isnan(found.point).all()
