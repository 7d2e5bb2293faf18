"""Where no action of a Box is allowed: the largest margin, then the fewest broken rules, then the nearest."""

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import rlpd_gx as gx

PLANE = gym.spaces.Box(-1, 1, (2,), np.float32)


def test_the_least_bad_action_keeps_the_rules_it_can_keep():
    """A person met this: [-2, 0.594] was executed, which breaks both rules."""
    thrust = gx.l1_rule(lambda s: (np.ones(2), 2.5), name="thrust")
    zone = gx.halfspace_rule(lambda s: ([[0.2, 0.0]], [-1.8]), name="zone")  # impossible
    guardian = gx.Guardian(gym.spaces.Box(-2, 2, (2,), np.float32), [thrust, zone])
    verdict = guardian.certify(None, np.array([1.388, 0.594], np.float32))
    assert verdict.inevitable
    assert verdict.exact
    assert verdict.executed_margin == pytest.approx(-1.4, rel=2e-6)
    assert np.abs(verdict.action.astype(float)).sum() <= 2.5
    assert verdict.action == pytest.approx([-2.0, 0.5], abs=1e-4)


def test_rules_asked_about_single_actions_are_not_part_of_what_is_proven_of_the_least_bad():
    never = gx.bounds_rule(lambda s: ([2, -1], [3, 1]), name="never")
    guardian = gx.Guardian(PLANE, [never, gx.rule(lambda s, a: bool(a[1] > 0), name="up")])
    verdict = guardian.certify(None, np.array([0.5, -0.5], np.float32))
    assert verdict.inevitable
    assert not verdict.exact


def halves(low: float, high: float) -> st.SearchStrategy[float]:
    return st.integers(int(2 * low), int(2 * high)).map(lambda v: v / 2)


def pairs(low: float, high: float) -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(halves(low, high), halves(low, high))


CONVEX = st.one_of(
    st.tuples(st.just("l1"), pairs(0, 2), halves(0, 3)),
    st.tuples(st.just("halfspace"), pairs(-2, 2), halves(-6, 2)),
    st.tuples(st.just("bounds"), pairs(-4, 4), halves(0, 1)),
)


def as_rule(kind: str, weights: tuple[float, float], limit: float) -> gx.Rule:
    if kind == "bounds":
        middle = np.array(weights)
        return gx.bounds_rule(lambda s: (middle - limit, middle + limit))
    if kind == "halfspace":
        return gx.halfspace_rule(lambda s: ([weights], [limit]))
    return gx.l1_rule(lambda s: (weights, limit))


def margins_by_hand(kind: str, weights: tuple[float, float], limit: float, actions: np.ndarray) -> np.ndarray:
    if kind == "bounds":
        return limit - np.abs(actions - weights).max(axis=-1)
    return limit - (actions if kind == "halfspace" else np.abs(actions)) @ weights


@settings(max_examples=60)
@given(
    rules=st.lists(CONVEX, min_size=2, max_size=4),
    either=st.booleans(),
    proposed=st.tuples(*[st.floats(-2, 2, width=32)] * 2),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_no_action_is_less_bad_than_the_least_bad_one(rules, either, proposed, dtype):
    """By a grid that contains the corners of many of these sets: largest margin, fewest broken rules, nearest."""
    made = [as_rule(*r) for r in rules]
    if either:
        made = [made[0] | made[1], *made[2:]]

    def margins(actions):
        each = [margins_by_hand(*r, actions) for r in rules]
        return np.stack([np.maximum(each[0], each[1]), *each[2:]] if either else each)

    verdict = gx.Guardian(gym.spaces.Box(-2, 2, (2,), dtype), made).certify(None, np.array(proposed, dtype))
    assume(verdict.inevitable)
    axis = np.linspace(-2, 2, 33)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    here, there = margins(verdict.action.astype(float)[None])[:, 0], margins(grid)
    worst, at_grid = here.min(), there.min(axis=0)
    assert verdict.executed_margin == pytest.approx(worst, rel=1e-5)
    assert (at_grid <= worst + 1e-5 * (1 + abs(worst))).all()
    broken, broken_there = (here < -1e-5).sum(), (there < 0).sum(axis=0)
    as_good = at_grid >= worst
    assert not (as_good & (broken_there < broken)).any()
    nearer = np.linalg.norm(grid - proposed, axis=-1) < verdict.distance - 1e-4
    assert not (verdict.exact and (as_good & (broken_there <= broken) & nearer).any())
