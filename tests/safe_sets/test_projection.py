"""Projection, compiled and not, against a conic solver: 10,000 random cases for each kind of set."""

import conic_reference
import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.safe_sets import compiled

DIMENSIONS = range(1, 21)
CASES_EACH = 500  # for each of 20 dimensions: 10,000
MAKE = {
    "halfspace": lambda w, c: gx.Polytope(w[..., None, :], c[..., None]),
    "l1": gx.WeightedL1,
    "positive_sum": gx.PositiveSum,
    "ellipsoid": gx.Ellipsoid,
}
COMBINATIONS = {
    "box": (),
    "halfspace": ("halfspace",),
    "polytope": ("halfspace",) * 5,
    "l1": ("l1",),
    "positive_sum": ("positive_sum",),
    "ellipsoid": ("ellipsoid",),
    "l1 and ellipsoid": ("l1", "ellipsoid"),
    "everything": ("halfspace", "l1", "positive_sum", "ellipsoid"),
}


def draw(rng, kinds, count, d):
    """Random problems; about one in five weights is zero, one threshold in ten, proposals from near to far."""
    scale = rng.choice([0.5, 2.0, 20.0], size=(count, 1))
    a = rng.normal(size=(count, d)) * scale
    low, high = -rng.uniform(0, 1.5, (count, d)), rng.uniform(0, 1.5, (count, d))
    constraints = []
    for kind in kinds:
        w = rng.normal(size=(count, d)) * rng.choice([0.1, 1.0, 10.0], size=(count, 1))
        w[rng.random((count, d)) < 0.2] = 0.0
        c = rng.uniform(0, 2, count)
        c[rng.random(count) < 0.1] = 0.0
        constraints.append((kind, np.abs(w) if kind == "ellipsoid" else w, c))
    return a, low, high, constraints


def set_of(low, high, constraints):
    return gx.Intersection(gx.Box(low, high), *(MAKE[k](w, c) for k, w, c in constraints))


def excess(x, low, high, constraints):
    """By how much each point breaks its worst constraint, relative to the numbers in it; from the definitions."""
    worst = np.maximum(low - x, x - high).max(axis=-1)
    for kind, w, c in constraints:
        value = {
            "halfspace": (w * x).sum(-1),
            "l1": np.abs(w * x).sum(-1),
            "positive_sum": np.maximum(w * x, 0).sum(-1),
            "ellipsoid": (w * x * x).sum(-1),
        }[kind]
        size = np.abs(c) + np.abs(w * x).sum(-1) + (w * x * x).sum(-1) * (kind == "ellipsoid") + 1e-300
        worst = np.maximum(worst, (value - c) / size)
    return worst


def both_ways(safe, a):
    """The answers of the compiled kernel (where numba is installed) and of the reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "kernel", lambda: None)
        reference = safe.nearest(a)
    return safe.nearest(a), reference


@pytest.mark.parametrize("name", COMBINATIONS)
def test_nearest_point_agrees_with_a_conic_solver(name):
    rng = np.random.default_rng(sum(map(ord, name)))
    compared = 0
    for d in DIMENSIONS:
        a, low, high, constraints = draw(rng, COMBINATIONS[name], CASES_EACH, d)
        safe = set_of(low, high, constraints)
        ways = both_ways(safe, a)
        for found in ways:
            assert found.found.all()  # zero lies in every one of these sets
            assert (excess(found.point, low, high, constraints) <= 1e-12).all()
        for i in range(CASES_EACH):
            mine = max(np.linalg.norm(found.point[i] - a[i]) for found in ways)
            case = [(k, w[i], c[i]) for k, w, c in constraints]
            reference, status = conic_reference.project(a[i], low[i], high[i], case)
            assert status not in conic_reference.INFEASIBLE
            theirs = np.linalg.norm(reference - a[i])
            assert mine <= (1 + 1e-6) * theirs + 1e-8, (d, i, mine - theirs)
            compared += 1
        for short, _, _ in both_ways(safe, a.astype(np.float32)):
            assert short.dtype == np.float32
            assert (
                excess(short.astype(float), low, high, constraints) <= gx.safe_sets.TOLERANCE_FLOAT32
            ).all()
    assert compared == 10_000


def test_a_wrong_projection_is_caught():
    """The comparison above has teeth: clipping onto the set along the ray from zero is not the nearest point."""
    rng = np.random.default_rng(0)
    a, low, high, constraints = draw(rng, ("l1",), 50, 4)
    a = np.clip(a, low, high)
    w, c = constraints[0][1:]
    ratio = np.minimum(1.0, c / np.maximum(np.abs(w * a).sum(-1), 1e-12))
    shrunk = a * ratio[:, None]
    worse = 0
    for i in range(50):
        reference, _ = conic_reference.project(a[i], low[i], high[i], [("l1", w[i], c[i])])
        worse += np.linalg.norm(shrunk[i] - a[i]) > (1 + 1e-6) * np.linalg.norm(reference - a[i]) + 1e-8
    assert worse > 10


def test_infeasible_intersections_are_proven_empty():
    rng = np.random.default_rng(1)
    agreed = 0
    for d in (1, 2, 5, 12):
        for _ in range(60):
            w = rng.normal(size=(3, d))
            c = rng.uniform(-3, 1, 3)
            a = rng.normal(size=d)
            low, high = -np.ones(d), np.ones(d)
            mine = gx.Intersection(gx.Box(low, high), gx.Polytope(w, c)).nearest(a)
            _, status = conic_reference.project(a, low, high, [("halfspace", w[k], c[k]) for k in range(3)])
            infeasible = status in conic_reference.INFEASIBLE
            assert bool(mine.empty) == infeasible
            assert bool(mine.found) == (not infeasible)
            agreed += infeasible
    assert agreed > 20


def test_the_metric_changes_what_is_nearest():
    plane = gx.Polytope(np.array([[1.0, 1.0]]), np.array([0.0]))
    assert plane.nearest(np.array([1.0, 1.0])).point == pytest.approx([0.0, 0.0], abs=1e-9)
    # With weights 4 and 1 the Lagrangian gives x - a = -lam * (1/4, 1) and x1 + x2 = 0, so lam = 8/5.
    point = plane.nearest(np.array([1.0, 1.0]), np.array([4.0, 1.0])).point
    assert point == pytest.approx([1 - 0.4, 1 - 1.6], abs=1e-9)


DEGENERATE = {
    "all weights zero": (gx.WeightedL1(np.zeros(3), 1.0), [5, -5, 0.3], [1, -1, 0.3]),
    "l1 threshold zero": (gx.WeightedL1([1.0, 0.0, 2.0], 0.0), [0.5, 0.5, -0.5], [0, 0.5, 0]),
    "positive sum threshold zero": (gx.PositiveSum([1.0, -1.0, 0.0], 0.0), [0.5, 0.5, 0.5], [0, 0.5, 0.5]),
    "ellipsoid threshold zero": (gx.Ellipsoid([1.0, 0.0, 4.0], 0.0), [0.5, 0.5, 0.5], [0, 0.5, 0]),
    "duplicated rows": (gx.Polytope([[1.0, 1, 1]] * 4, [0.0] * 4), [0.3, 0.3, 0.3], [0, 0, 0]),
    "opposite rows": (gx.Polytope([[1.0, 0, 0], [-1, 0, 0]], [0.3, -0.3]), [0.9, 0.1, 0.2], [0.3, 0.1, 0.2]),
    "single point of a box": (gx.Box([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]), [1, 1, 1], [0.1, 0.2, 0.3]),
    "corner of the space": (gx.Polytope([[-1.0, -1, -1]], [-3.0]), [0, 0, 0], [1, 1, 1]),
    "on the boundary": (gx.WeightedL1([2.0, 2, 2], 1.5), [0.25, -0.25, 0.25], [0.25, -0.25, 0.25]),
    "padding rows": (gx.Polytope([[1.0, 0, 0], [0, 0, 0]], [0.2, np.inf]), [0.9, 0.1, 0.2], [0.2, 0.1, 0.2]),
    "unbounded": (gx.Polytope([[1.0, 0, 0]], [0.5]), [0.7, 0.1, 0.2], [0.5, 0.1, 0.2]),
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_degenerate_sets(name, dtype):
    safe, a, expected = DEGENERATE[name]
    whole = gx.Intersection(gx.Box(-np.ones(3), np.ones(3)), safe)
    a = np.array(a, dtype=dtype)
    found = whole.nearest(a)
    assert bool(found.found)
    assert found.point.dtype == dtype
    assert found.point == pytest.approx(np.array(expected, dtype), abs=1e-9 if dtype == np.float64 else 3e-7)
    assert whole.contains(found.point)


def test_an_empty_set_says_so_and_gives_no_point():
    for safe in (
        gx.Box([1.0], [0.0]),
        gx.WeightedL1([1.0], -0.1),
        gx.Intersection(gx.Box([0.5], [1.0]), gx.Ellipsoid([1.0], 0.1)),
    ):
        found = safe.nearest(np.array([0.3]))
        assert bool(found.empty)
        assert not bool(found.found)
        assert np.isnan(found.point).all()


def test_strictly_inside_after_the_cast_wherever_there_is_room():
    """Not merely within a tolerance: an observer who recomputes the rule in 64 bits sees no violation at all."""
    rng = np.random.default_rng(5)
    w, a = rng.normal(size=(4000, 6)) * 5, (3 * rng.normal(size=(4000, 6))).astype(np.float32)
    point = gx.Intersection(gx.Box(-np.ones(6), np.ones(6)), gx.PositiveSum(w, np.full(4000, 10.0))).project(
        a
    )
    assert (np.maximum(w * point.astype(np.float64), 0).sum(-1) <= 10.0).all()
    assert (np.abs(point) <= 1).all()


def test_wrong_dimension_and_wrong_weights_get_a_sentence():
    with pytest.raises(gx.GxError, match="dimension 2"):
        gx.Box([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]).project(np.zeros(2))
    with pytest.raises(gx.GxError, match="negative"):
        gx.Ellipsoid([-1.0], 1.0)
    with pytest.raises(gx.GxError, match="different dimensions"):
        gx.Intersection(gx.Box([0.0], [1.0]), gx.Box([0.0, 0.0], [1.0, 1.0]))
