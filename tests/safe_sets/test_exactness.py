"""Rules hold in exact arithmetic, far proposals included, and a set is called empty only where that is proven."""

from fractions import Fraction

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torture._exact_checker import violations
from torture._rule_cases import hostile

import rlpd_gx as gx
from rlpd_gx.safe_sets import exact
from rlpd_gx.safe_sets.separable import Rows

FORMS = {
    "l1": (gx.WeightedL1([1.0, 1.0], 1.0), lambda x, y: abs(x) + abs(y)),
    "positive sum": (gx.PositiveSum([1.0, 1.0], 1.0), lambda x, y: max(x, 0) + max(y, 0)),
    "ellipsoid": (gx.Ellipsoid([1.0, 1.0], 1.0), lambda x, y: x * x + y * y),
    "half-space": (gx.Polytope([[1.0, 1.0]], [1.0]), lambda x, y: x + y),
}


def fractions(values):
    return [Fraction(float(v)) for v in np.ravel(values)]


def exact_excess(rows, x):
    """f(x) - c of each row in fractions, from the definition of a row."""
    totals = []
    for pos, neg, quad, bound in zip(rows.pos, rows.neg, rows.quad, rows.bound, strict=True):
        terms = zip(fractions(pos), fractions(neg), fractions(quad), fractions(x), strict=True)
        totals.append(
            sum(p * max(v, 0) + n * max(-v, 0) + q * v * v for p, n, q, v in terms) - Fraction(float(bound))
        )
    return totals


# --- proposals far outside -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        *((size, dtype) for size in (1e5, 1e8, 1e13, 1e15, 1e30) for dtype in (np.float32, np.float64)),
        (1e300, np.float64),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_a_far_proposal_is_projected_like_a_near_one(form, size, dtype):
    safe, value = FORMS[form]
    whole = gx.Intersection(gx.Box([0.1, 0.1], [1.0, 1.0]), safe)
    for proposal in ([size, size], [size, -size], [size, size / 3], [-size, size]):
        a = np.array(proposal, dtype)
        found = whole.nearest(a)
        assert found.found
        assert not found.empty
        assert value(*fractions(found.point)) <= 1
        assert (found.point >= 0.1).all()
        assert (found.point <= 1).all()
        # No point of the set, seen from a fine grid, lies further in the direction of the proposal.
        grid = np.stack(np.meshgrid(*[np.linspace(0.1, 1, 181)] * 2), axis=-1).reshape(-1, 2)
        grid = grid[whole.margin(grid) >= 0]
        direction = np.array(proposal) / size
        assert (grid @ direction).max() <= found.point.astype(float) @ direction + 1e-4


def test_the_verdict_on_a_huge_proposal_is_a_projection():
    """The first defect of the review: proposals of 1e13 and more were called inevitable, and (1, 1) was executed."""
    for dtype in (np.float32, np.float64):
        space = gym.spaces.Box(np.full(2, 0.1, dtype), np.ones(2, dtype), dtype=dtype)
        verdict = gx.Guardian(space, gx.l1_rule(lambda s: ([1.0, 1.0], 1.0))).certify(
            None, np.full(2, 1e15, dtype)
        )
        assert verdict.status == "projected"
        assert verdict.action == pytest.approx([0.5, 0.5], abs=1e-6)
        assert sum(fractions(verdict.action)) <= 1


def test_a_proposal_brought_near_keeps_its_nearest_point():
    """Within the stated 1.2e-10 of the distance, against a projection in higher precision (a disc: closed form)."""
    disc = gx.Intersection(gx.Box([-1.0, -1.0], [1.0, 1.0]), gx.Ellipsoid([1.0, 1.0], 0.25))
    rng = np.random.default_rng(0)
    for size in (1e3, 1e5, 1e6, 1e9, 1e12):
        a = rng.normal(size=(50, 2)) * size
        point = disc.project(a)
        nearest = np.linalg.norm(a, axis=-1) - 0.5
        assert (np.linalg.norm(a - point, axis=-1) <= nearest * (1 + 1.2e-10) + 1e-12).all()


# --- exact signs ---------------------------------------------------------------------------------------------------

wide = st.floats(-1e9, 1e9, allow_nan=False) | st.sampled_from(
    [0.1, 0.2, 0.3, 0.7, 1 / 3, 5e-324, 1e-310, 1e200, 0.0]
)


@given(st.data(), st.integers(1, 5))
def test_the_sign_of_an_excess_is_that_of_exact_arithmetic(data, d):
    pos, neg, x = (data.draw(hnp.arrays(np.float64, d, elements=wide)) for _ in range(3))
    quad = np.abs(data.draw(hnp.arrays(np.float64, d, elements=wide)))
    with np.errstate(all="ignore"):
        value = float(Rows(pos[None], neg[None], quad[None], np.zeros(1)).excess(x)[0])
        # Thresholds where rounding decides: the rounded value of the row itself, and its neighbours.
        near = [value, np.nextafter(value, np.inf), np.nextafter(value, -np.inf), 0.0]
        bounds = np.array([v for v in near if np.isfinite(v)])
        rows = Rows(*(np.broadcast_to(v, (len(bounds), d)) for v in (pos, neg, quad)), bounds)
        given_signs = np.sign(exact.excess(rows, x))
        tensors = Rows(*(torch.tensor(np.array(v)) for v in (rows.pos, rows.neg, rows.quad, rows.bound)))
        assert np.array_equal(np.sign(exact.excess(tensors, torch.tensor(x)).numpy()), given_signs)
    assert given_signs.tolist() == [(v > 0) - (v < 0) for v in exact_excess(rows, x)]


def test_floating_point_alone_gets_signs_wrong():
    """The comparison above has teeth."""
    wrong = 0
    rng = np.random.default_rng(0)
    for _ in range(200):
        w, x = rng.random((2, 1, 4))
        rows = Rows(w, -w, 0 * w, (w * x).sum(-1))
        truth = exact_excess(rows, x[0])[0]
        wrong += (rows.excess(x[0])[0] > 0) != (truth > 0)
        assert (exact.excess(rows, x[0])[0] > 0) == (truth > 0)
    assert wrong > 20


def test_an_underflow_is_not_multiplied_into_a_wrong_sign():
    """x^2 is a denormal number with a rounding of 1e-8, and the weight makes it a large one."""
    x, quad = np.array([1.1e-158]), np.array([[2.0**600]])
    square = Fraction(float(x[0])) ** 2 * Fraction(2) ** 600
    for factor, sign in ((1 - 1e-10, 1.0), (1 + 1e-10, -1.0)):
        rows = Rows(0 * quad, 0 * quad, quad, np.array([float(square) * factor]))
        assert np.sign(exact.excess(rows, x)).tolist() == [sign]


# --- rules hold exactly where the set has room ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [16, 64, 512, 4096])
def test_in_a_slab_of_a_few_roundings_the_rules_hold_exactly(width, dtype):
    rng = np.random.default_rng(width)
    d, count = 5, 60
    inside = rng.uniform(-0.9, 0.9, (count, d)).astype(dtype).astype(float)
    w = rng.normal(size=(count, d))
    middle = (w * inside).sum(-1)
    half = width * np.finfo(dtype).eps * np.abs(w * inside).sum(-1)
    A, b = np.stack([w, -w], axis=1), np.stack([middle + half, half - middle], axis=1)
    whole = gx.Intersection(gx.Box(-np.ones(d), np.ones(d)), gx.Polytope(A, b))
    found = whole.nearest((3 * rng.normal(size=(count, d))).astype(dtype))
    assert found.found.all()
    for i in range(count):
        assert max(exact_excess(whole.form.rows[i], found.point[i])) <= 0


@given(st.data())
def test_what_a_guardian_executes_satisfies_its_rules_exactly(data):
    """Ordinary rules around a known allowed action, numbers of any length: no tolerance is needed."""
    d = data.draw(st.integers(1, 4))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    unit = st.floats(-1, 1, width=32)
    inside = data.draw(hnp.arrays(np.float32, d, elements=unit)).astype(float)
    A = data.draw(hnp.arrays(np.float64, (3, d), elements=st.floats(-3, 3).map(lambda v: round(v, 6))))
    w = data.draw(hnp.arrays(np.float64, d, elements=st.floats(-3, 3).map(lambda v: round(v, 6))))
    room = data.draw(st.floats(1e-4, 1))
    b, c = A @ inside + room, np.abs(w * inside).sum() + room
    rules = gx.halfspace_rule(lambda s: (A, b)) & gx.l1_rule(lambda s: (w, c))
    guardian = gx.Guardian(gym.spaces.Box(-1, 1, (d,), dtype), rules)
    exponent = data.draw(st.integers(-3, 30))
    proposed = data.draw(hnp.arrays(np.float32, d, elements=unit)).astype(float) * 10.0**exponent
    verdict = guardian.certify(None, proposed.astype(dtype))
    assert verdict.status in ("allowed", "projected")
    x = fractions(verdict.action)
    for row, bound in zip(A, b, strict=True):
        assert sum(f * v for f, v in zip(fractions(row), x, strict=True)) <= Fraction(float(bound))
    assert sum(abs(f * v) for f, v in zip(fractions(w), x, strict=True)) <= Fraction(float(c))


def test_near_parallel_and_badly_scaled_rows_converge():
    """0.4 to 4% of these did not before."""
    rng = np.random.default_rng(3)
    count, rows, d = 400, 6, 5
    inside = rng.uniform(-0.8, 0.8, (count, d))
    base = rng.normal(size=(count, 1, d)) * rng.choice([-1.0, 1.0], (count, rows, 1))
    A = base + 10.0 ** rng.uniform(-12, -3, (count, rows, 1)) * rng.normal(size=(count, rows, d))
    A *= 10.0 ** rng.uniform(-8, 8, (count, rows, 1))
    size = np.abs(A).sum(-1)
    b = (A * inside[:, None]).sum(-1) + size * 10.0 ** rng.uniform(-9, 0, (count, rows))
    whole = gx.Intersection(gx.Box(-np.ones(d), np.ones(d)), gx.Polytope(A, b))
    a = 3 * rng.normal(size=(count, d))
    found = whole.nearest(a)
    assert found.found.all()
    assert (whole.margin(found.point) >= 0).all()
    assert (np.linalg.norm(found.point - a, axis=-1) <= np.linalg.norm(inside - a, axis=-1) + 1e-9).all()


def test_aiming_inside_does_not_lead_far_away():
    """z <= -2e-15 y with z = 0: a slack of 4e-13 in that row would be bought by going 200 in y."""
    safe = gx.Intersection(gx.Ellipsoid([0.0, 1.0], 0.0), gx.Polytope([[2.00000001e-15, 1.0]], [0.0]))
    assert safe.project(np.array([0.0, 1.0])) == pytest.approx([0.0, 0.0], abs=1e-9)


@pytest.mark.parametrize("row", [224, 226, 217])
def test_where_the_nearest_point_has_no_room_another_one_is_found(row):
    """Found by the soak (row 224 broke a rule, the others did not converge): half-spaces through a tiny ellipsoid.

    At the nearest point the rows leave 1e-9 while 32 bits round by 1e-8; nearer to zero there is room.
    """
    case = hostile(np.random.default_rng([5, 2, 231]), 256)[slice(row, row + 1)]
    assert case.name == "tiny sets"
    verdicts = gx.Guardian(case.space, case.rule()).certify_batch(case.states, case.proposed)
    assert verdicts.status == ["projected"]
    assert not len(violations(case, verdicts.action))


# --- emptiness is proven -------------------------------------------------------------------------------------------


def test_multipliers_that_prove_nothing_are_not_believed():
    box = np.zeros((1, 1)), np.ones((1, 1))
    A = np.array([[[1.0], [-1.0]]])
    for gap, empty in ((0.5, True), (2.0**-52, True), (0.0, False), (-(2.0**-52), False)):
        rows = Rows(A, -A, 0 * A, np.array([[0.5, -0.5 - gap]]), kinked=False, curved=False)
        assert exact.proven_empty(rows, np.array([[1.0, 1.0]]), *box).tolist() == [empty]
        assert exact.proven_empty(rows, np.array([[1.0, 0.0]]), *box).tolist() == [False]
        assert exact.proven_empty(rows, np.array([[np.inf, np.nan]]), *box).tolist() == [False]


@given(st.data())
def test_a_set_that_holds_a_known_point_is_never_called_empty(data):
    d = data.draw(st.integers(1, 4))
    number = st.floats(-2, 2, width=32)
    z = data.draw(hnp.arrays(np.float32, d, elements=number)).astype(float)
    A = data.draw(hnp.arrays(np.float64, (4, d), elements=number))
    w = data.draw(hnp.arrays(np.float64, d, elements=number))
    safe = gx.Intersection(gx.Box(z - 0.25, z), gx.Polytope(A, A @ z), gx.WeightedL1(w, np.abs(w * z).sum()))
    if (safe.margin(z) >= 0).all():  # else rounding of the thresholds has excluded the point
        size = 10.0 ** data.draw(st.integers(-2, 200))
        assert not safe.nearest(data.draw(hnp.arrays(np.float64, d, elements=number)) * size).empty


# --- unions --------------------------------------------------------------------------------------------------------


def test_a_union_with_an_unsolved_branch_does_not_claim_the_nearest_point(monkeypatch, without_numba):
    import rlpd_gx.safe_sets.last_resort as last_resort
    import rlpd_gx.safe_sets.solver as solver

    # the real solvers, allowed no step: the l1 branch stays open
    monkeypatch.setattr(solver, "MAX_STEPS", -100)
    monkeypatch.setattr(last_resort, "MAX_CUTS", 0)
    far = gx.bounds_rule(lambda s: ([-1, -1], [-0.9, -0.9]), name="far")
    near = gx.l1_rule(lambda s: ([1.0, 1.0], 1.0), name="near")
    guardian = gx.Guardian(gym.spaces.Box(-1, 1, (2,), np.float64), far | near)
    verdict = guardian.certify(None, np.array([0.9, 0.9]))
    assert verdict.status == "projected"
    assert not verdict.exact
    found = verdict.safe_set.nearest(np.array([0.9, 0.9]))
    assert not found.found
    assert not found.empty
    assert verdict.safe_set.nearest(
        np.array([-0.95, -0.95])
    ).found  # nothing is nearer than the proposal itself


def test_a_union_of_solved_branches_is_exact():
    far = gx.bounds_rule(lambda s: ([-1, -1], [-0.9, -0.9]), name="far")
    near = gx.l1_rule(lambda s: ([1.0, 1.0], 1.0), name="near")
    guardian = gx.Guardian(gym.spaces.Box(-1, 1, (2,), np.float64), far | near)
    verdict = guardian.certify(None, np.array([0.9, 0.9]))
    assert verdict.exact
    assert verdict.action == pytest.approx([0.5, 0.5])


def test_a_branch_too_thin_for_the_dtype_yields_to_one_with_room():
    """The nearer branch holds no number of 32 bits; the other one does, so there is an allowed action."""
    thin = gx.bounds_rule(lambda s: ([0.1], [0.1]), name="thin")
    wide_one = gx.bounds_rule(lambda s: ([-1.0], [-0.5]), name="wide")
    space = gym.spaces.Box(-1, 1, (1,), np.float32)
    verdict = gx.Guardian(space, thin | wide_one).certify(None, np.array([0.5], np.float32))
    assert verdict.action.tolist() == [-0.5]
    assert not verdict.exact


# --- everything and only -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("safe", "action", "other"),
    [
        (gx.Mask([True, False, False]), np.array(1), np.array(2)),
        (gx.Mask([True, False, False, False], nvec=(2, 2), start=(1, 1)), np.array([1, 2]), np.array([2, 2])),
        (gx.ProductMask([True, False, True, False], (2, 2)), np.array([1, 1]), np.array([0, 1])),
        (gx.Box([0.0], [0.1]), np.array([0.5]), np.array([0.7])),
        (gx.Intersection(gx.Box([-1.0], [1.0]), gx.WeightedL1([1.0], 0.1)), np.array([0.5]), np.array([0.7])),
        (
            gx.Union(
                *(gx.Intersection(gx.Box([-1.0], [1.0]), gx.Polytope([[s]], [-0.8])) for s in (1.0, -1.0))
            ),
            np.array([0.5]),
            np.array([0.7]),
        ),
    ],
)
def test_everything_and_only_keep_the_form(safe, action, other):
    assert not safe.contains(action)
    assert safe.everything().contains(action)
    assert safe.everything().contains(other)
    alone = safe.only(action)
    assert alone.contains(action)
    assert not alone.contains(other)
    for made in (safe.everything(), alone):
        assert made.spec == safe.spec
        assert made.encode().shape == safe.encode().shape


def test_a_row_set_alone_cannot_hold_one_action():
    with pytest.raises(gx.GxError, match="box first"):
        gx.WeightedL1([1.0], 1.0).only(np.array([0.5]))
