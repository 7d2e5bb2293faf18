"""Barrier functions: half-spaces by hand and by torch, and what they keep from happening."""

import runpy
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rlpd_gx as gx

EXAMPLE = Path(__file__).parents[2] / "examples" / "barriers.py"
SPACE = gym.spaces.Box(-5, 5, (1,), np.float64)
# place and speed; the action pushes
CART = (lambda x: np.array([x[1], 0.0]), lambda x: np.array([[0.0], [1.0]]))


def least_wall(x):
    return 1.0 - x[0] - x[1]  # h = 1 - x - v: its derivative is -v - a


numbers = st.floats(-3, 3)


@given(numbers, numbers, numbers)
@settings(max_examples=30, deadline=None)
def test_the_executed_action_is_the_nearest_one_that_keeps_the_barrier(x, v, proposed):
    rule = gx.cbf_rule(least_wall, dynamics=CART, alpha=0.5)
    highest = -v + 0.5 * (1 - x - v)  # -v - a >= -0.5 h
    verdict = gx.Guardian(SPACE, rule).certify(np.array([x, v]), np.array([proposed]))
    if highest >= -5:
        assert verdict.action[0] == pytest.approx(min(proposed, highest), abs=1e-9)
    else:
        assert verdict.inevitable


def test_torch_agrees_with_a_given_gradient_and_batches_with_single_states():
    def h(x):  # two barriers, of states [n] or [B, n]
        ones, back = (torch, -1) if isinstance(x, torch.Tensor) else (np, -1)
        return ones.stack([1 - x[..., 0] ** 2 - x[..., 1], 2 + x[..., 0] * x[..., 1]], back)

    def slope(x):
        first = np.stack([-2 * x[..., 0], -np.ones_like(x[..., 0])], -1)
        return np.stack([first, np.stack([x[..., 1], x[..., 0]], -1)], -2)

    def drift(x):
        return np.stack([x[..., 1], np.zeros_like(x[..., 0])], -1)

    def gain(x):
        return np.broadcast_to(np.array([[0.0], [1.0]]), (*x.shape, 1))

    states = np.random.default_rng(0).normal(size=(6, 2))
    by_torch, by_hand = (
        gx.cbf_rule(h, dynamics=(drift, gain), alpha=lambda v: v**3, gradient=g, batched=True).fn(states)
        for g in (None, slope)
    )
    single = [gx.cbf_rule(h, dynamics=(drift, gain), alpha=lambda v: v**3).fn(x) for x in states]
    for k in (0, 1):
        np.testing.assert_allclose(by_torch[k], by_hand[k], atol=1e-12)
        np.testing.assert_allclose(by_torch[k], np.stack([one[k] for one in single]), atol=1e-12)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (gx.cbf_rule(lambda x: torch.log(x[0]), dynamics=CART), "not finite"),
        (gx.cbf_rule(lambda x: 1.0, dynamics=CART), "give gradient="),
        (gx.cbf_rule(lambda x: np.linalg.norm(x), dynamics=CART), "give gradient="),
        (gx.cbf_rule(least_wall, dynamics=(CART[0], lambda x: np.ones(3))), "needs f of shape"),
        (gx.cbf_rule(least_wall, dynamics=CART, gradient=lambda x: np.ones(3)), "needs a gradient of shape"),
    ],
)
def test_a_barrier_that_cannot_be_computed_fails_closed(rule, reason):
    guardian = gx.Guardian(SPACE, rule, fallback=np.zeros(1))
    verdict = guardian.certify(np.array([0.0, 0.0]), np.array([1.0]))
    assert verdict.status is gx.Status.FALLBACK
    assert verdict.action[0] == 0
    assert reason in verdict.reason


@pytest.mark.parametrize(("kind", "rule"), [("Drone", "fence"), ("Car", "headway")])
def test_a_drone_stays_in_its_room_and_a_car_keeps_its_distance(kind, rule):
    example = runpy.run_path(str(EXAMPLE))
    without, _ = example["unsafe_steps"](example[kind](), example[rule], "monitor")
    guarded, corrections = example["unsafe_steps"](example[kind](), example[rule], "enforce")
    assert without > 0
    assert guarded == 0
    assert corrections > 0


def test_the_fingerprint_covers_what_the_rule_is_made_of():
    first, again = (gx.cbf_rule(least_wall, dynamics=CART, alpha=0.5) for _ in range(2))
    other = gx.cbf_rule(least_wall, dynamics=CART, alpha=0.6)
    assert first.fingerprint == again.fingerprint != other.fingerprint
