"""A form of rule that this package does not have, written outside it: one class, and it certifies."""

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import rlpd_gx as gx
from rlpd_gx.rules import forms, maker

SIDES = 64
PLANE = gym.spaces.Box(-1, 1, (2,), np.float64)


class Disc(forms.SetForm):
    """A rule from a disc: fn(state) -> (centre [2], radius); a regular polygon inside it, as half-spaces."""

    name = "disc"
    parameters = {"centre": ("d",), "radius": ()}  # noqa: RUF012
    finite = ("centre",)

    def check(self, centre, radius):
        if (radius < 0).any():
            raise gx.GxError("returned a negative radius")

    def convex_set(self, centre, radius):
        from rlpd_gx.safe_sets import Polytope

        angle = 2 * np.pi * np.arange(SIDES) / SIDES
        normals = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        return Polytope(
            np.broadcast_to(normals, (len(centre), SIDES, 2)),
            centre @ normals.T + radius[:, None] * np.cos(np.pi / SIDES),
        )

    def unbounded(self, d):
        return np.zeros(d), np.array(np.inf)


disc_rule = maker(Disc())


GUARDIAN = gx.Guardian(PLANE, disc_rule(lambda state: state, name="disc"))


@example(centre=(0.0, 0.25), radius=0.25, proposed=(0.0, 5e-324))  # the solver took its unit from that
@given(
    st.tuples(st.floats(-0.4, 0.4), st.floats(-0.4, 0.4)),
    st.floats(0.05, 0.5),
    st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
)
def test_it_certifies_like_a_form_of_the_package(centre, radius, proposed):
    proposed = np.array(proposed)
    verdict = GUARDIAN.certify((np.array(centre), radius), proposed)
    away = np.linalg.norm(verdict.action - centre)
    assert away <= radius + 1e-9  # the truth, from outside
    beyond = max(np.linalg.norm(proposed - centre) - radius, 0.0)
    polygon_gap = radius * (1 - np.cos(np.pi / SIDES))
    assert beyond - 1e-9 <= verdict.distance
    assert np.linalg.norm(verdict.action - proposed) == pytest.approx(verdict.distance, abs=1e-9)
    if beyond > 0:
        nearest = centre + (proposed - centre) * radius / np.linalg.norm(proposed - centre)
        # The nearest point of the polygon is within sqrt(2 * radius * gap) of the disc's.
        assert np.linalg.norm(verdict.action - nearest) <= np.sqrt(2 * radius * polygon_gap) + polygon_gap
    assert verdict.safe_set.contains(verdict.action)


def test_its_answers_are_checked_it_combines_and_it_batches():
    bad = gx.Guardian(PLANE, disc_rule(lambda s: ([0, 0], -1.0)), fallback=np.zeros(2))
    assert "negative radius" in bad.certify(None, np.ones(2)).reason
    short = gx.Guardian(PLANE, disc_rule(lambda s: ([0], 1.0)), fallback=np.zeros(2))
    assert "returned centre of shape (1,), expected (2,)" in short.certify(None, np.ones(2)).reason
    ring = disc_rule(lambda s: (np.zeros((len(s), 2)), s), batched=True, name="near") & gx.rule(
        lambda s, a: a[:, 0] >= 0, batched=True, name="right"
    )
    batch = gx.Guardian(PLANE, ring).certify_batch(np.array([0.2, 0.4]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert batch.action == pytest.approx(np.array([[0.2, 0.0], [0.4, 0.0]]), abs=1e-3)
    tight = gx.Guardian(PLANE, disc_rule(lambda s: ([0, 0], 0.5)).shifted(0.1))
    assert tight.certify(None, np.array([1.0, 0.0])).action == pytest.approx([0.4, 0.0], abs=1e-3)
    with pytest.raises(gx.GxError, match="is a disc rule"):
        disc_rule(lambda s: ([0, 0], 1.0), lazy=True)
    with pytest.raises(gx.GxError, match="describes continuous actions"):
        gx.Guardian(gym.spaces.Discrete(2), disc_rule(lambda s: ([0, 0], 1.0)))


def test_the_fingerprint_depends_on_the_form_and_its_code():
    def answer(state):
        return [0.0, 0.0], 1.0

    class Disc2(Disc):
        def check(self, centre, radius):
            return None

    disc = disc_rule(answer).fingerprint
    assert disc == maker(Disc())(answer).fingerprint
    assert disc != maker(Disc2())(answer).fingerprint
    others = [gx.l1_rule, gx.bounds_rule, gx.ellipsoid_rule, gx.positive_sum_rule, gx.halfspace_rule]
    prints = {make(answer).fingerprint for make in others}
    assert len(prints | {disc, gx.halfspace_rule(answer, max_rows=3).fingerprint}) == len(others) + 2
