"""For the few problems that the batched solver does not finish: one at a time, slow, and checked exactly.

Rows are replaced by tangent planes, which never cut anything off a convex set. Each quadratic program over them is a
least-distance problem, solved as non-negative least squares (Lawson and Hanson 1974, chapter 23): an active-set
method that ends after finitely many steps and yields either the point or multipliers that prove emptiness.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
from scipy.optimize import nnls

from rlpd_gx.safe_sets import exact
from rlpd_gx.safe_sets.backend import Array, as_float, namespace, to_numpy
from rlpd_gx.safe_sets.separable import Rows
from rlpd_gx.safe_sets.solver import in_units, stated, units

MAX_CUTS = 200  # rounds of tangent planes; a few suffice unless an ellipsoid is tiny
MAX_PULLS = 6
FEASIBLE = 1e-12  # largest excess of a row, relative to its numbers, before the point is pulled inside
GAP = (
    1e-9  # largest difference of primal and dual, relative to the squared distance, of a point called nearest
)


class Problem(NamedTuple):
    """One set: low, high, metric [d], rows [K, d]."""

    low: np.ndarray
    high: np.ndarray
    rows: Rows
    metric: np.ndarray

    def tangents(self, x: np.ndarray) -> np.ndarray:
        """Slopes of the rows at x [K, d]; f(y) >= f(x) + slope (y - x) for every y."""
        return np.where(x >= 0, self.rows.pos, -self.rows.neg) + 2 * self.rows.quad * x

    def same_signs(self, x: np.ndarray) -> Self:
        """The part in which no component with a kink changes its sign: there the kinked rows are planes."""
        kinked = (self.rows.pos + self.rows.neg > 0).any(axis=0)
        low, high = np.where(x >= 0, 0.0, -np.inf), np.where(x <= 0, 0.0, np.inf)
        low, high = (np.where(kinked, *v) for v in ((low, -np.inf), (high, np.inf)))
        return self._replace(low=np.maximum(self.low, low), high=np.minimum(self.high, high))

    def clip(self, x: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(x, self.low), self.high)


class Rounding(NamedTuple):
    """The cast to the dtype of actions: what it does to float64 numbers, and its relative and absolute error."""

    cast: Callable[[np.ndarray], np.ndarray]
    half_eps: float
    smallest: float

    @classmethod
    def of(cls, a: Array) -> Self:
        """The cast to the dtype of an action a."""
        xp = namespace(a)
        about = xp.finfo(a.dtype)

        def cast(x: np.ndarray) -> np.ndarray:
            return to_numpy(as_float(xp.astype(as_float(x, like=a), a.dtype)))

        return cls(cast, float(about.eps) / 2, float(about.smallest_normal) * float(about.eps))


class Planes:
    """Half-spaces g x <= h and the row each one belongs to (-1: a bound)."""

    def __init__(self, problem: Problem) -> None:
        d = len(problem.low)
        self.g, self.h, self.row = np.empty((0, d)), np.empty(0), np.empty(0, dtype=int)
        for sign, bound in ((1.0, problem.high), (-1.0, -problem.low)):
            (held,) = np.nonzero(np.isfinite(bound))
            self.add(sign * np.eye(d)[held], bound[held], np.full(len(held), -1))

    def add(self, g: np.ndarray, h: np.ndarray, row: np.ndarray) -> None:
        self.g = np.concatenate([self.g, g])
        self.h = np.concatenate([self.h, h])
        self.row = np.concatenate([self.row, row])

    def by_row(self, multipliers: np.ndarray, count: int) -> np.ndarray:
        """Multipliers of the planes added up for each row [K]."""
        real = self.row >= 0
        return np.bincount(self.row[real], multipliers[real], minlength=count)


def nearest(a: np.ndarray, problem: Problem) -> tuple[np.ndarray | None, np.ndarray]:
    """The nearest point to a [d] up to rounding, or None; and multipliers [K], a candidate proof of emptiness."""
    unit = units(a[None], problem.low[None], problem.high[None], problem.rows[None])
    if unit is None:
        return _nearest(a, problem)
    scaled, low, high, rows = in_units(
        a[None], problem.low[None], problem.high[None], problem.rows[None], unit
    )
    x, multipliers = _nearest(scaled[0], Problem(low[0], high[0], rows[0], problem.metric))
    return (None if x is None else x * unit[0]), multipliers


def _nearest(a: np.ndarray, problem: Problem) -> tuple[np.ndarray | None, np.ndarray]:
    rows, count = problem.rows, len(problem.rows.bound)
    binds = np.isfinite(rows.bound)
    planes, multipliers = Planes(problem), np.zeros(count)
    x = problem.clip(a)
    for _ in range(MAX_CUTS):
        excess, size = exact.excess(rows, x), rows.magnitude(x)
        broken = binds & ~(excess <= 4 * exact.UNIT * size)
        if not broken.any():
            break
        slopes = problem.tangents(x)
        new = broken if len(planes.row) > 2 * len(x) or rows.kinked or rows.curved else binds
        planes.add(slopes[new], (slopes @ x - excess)[new], np.flatnonzero(new))
        # Newton's model of the Lagrangian: its curvature makes the sequence converge for curved rows.
        metric = problem.metric + 2 * multipliers @ np.where(rows.quad > 0, rows.quad, 0.0)
        pull = problem.metric * (a - x) / metric
        step, u = _least_distance(planes.g, planes.h - planes.g @ (x + pull), metric)
        multipliers = planes.by_row(u, count)
        if step is None:
            return None, multipliers
        following = problem.clip(x + pull + step)
        if np.array_equal(following, x):
            break
        x = following
    allowed = (exact.excess(rows, x) <= FEASIBLE * rows.magnitude(x))[binds].all()
    return (x if allowed and _is_nearest(a, x, multipliers, problem) else None), multipliers


def _is_nearest(a: np.ndarray, x: np.ndarray, multipliers: np.ndarray, problem: Problem) -> bool:
    """Whether weak duality shows that no allowed point is nearer than x by more than `GAP`."""
    rows = problem.rows
    batch = rows.with_arrays(*(v[None] for v in (rows.pos, rows.neg, rows.quad, rows.bound)))
    form, scale = stated(a[None], problem.low[None], problem.high[None], batch, problem.metric[None])
    weights = (multipliers / np.where(scale[0] > 0, scale[0], 1.0))[:, None]
    y = form.point(form.penalty(weights))
    dual = 0.5 * np.sum(form.metric * (y - form.a) ** 2) + np.sum(weights * form.excess(y))
    primal = 0.5 * np.sum(problem.metric * (x - a) ** 2)
    size = np.abs(form.combine(form.rows, y)).sum(axis=1) + np.abs(form.bound)
    # of the dual, where multipliers are large
    rounding = (2 * len(a) + 16) * exact.UNIT * np.sum(weights * size)
    return bool(primal - dual <= GAP * primal + rounding)


def pull_inside(x: np.ndarray, problem: Problem, rounding: Rounding) -> np.ndarray | None:
    """A point next to x [d] that satisfies bounds and rows exactly and that the cast leaves as it is, or None.

    In the variable y = z - x the rows read slope y <= -excess(x), with the excess exact: however close the rows are,
    the numbers are no larger than what is to be corrected. The cast moves each component by half a unit in the last
    place; every row is tightened by that much.
    """
    x = rounding.cast(problem.clip(x))
    binds = np.isfinite(problem.rows.bound)
    for attempt in range(MAX_PULLS):
        excess = exact.excess(problem.rows, x)
        if not ((problem.low <= x) & (x <= problem.high)).all():
            return None  # no number of this dtype is between the bounds
        if not (excess[binds] > 0).any():
            return x
        bounds = Planes(problem.same_signs(x) if attempt < MAX_PULLS - 2 else problem)
        slopes = problem.tangents(x)
        lost = np.abs(slopes) @ (rounding.half_eps * np.abs(x) + rounding.smallest)
        right = np.concatenate([bounds.h - bounds.g @ x, (-excess - 2.0**attempt * lost)[binds]])
        step, _ = _least_distance(np.concatenate([bounds.g, slopes[binds]]), right, problem.metric)
        if step is None:
            return None
        x = rounding.cast(problem.clip(x + step))
    return None


def _least_distance(g: np.ndarray, h: np.ndarray, metric: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """argmin sum metric y^2 over g y <= h [n, d], and multipliers [n]; None where nothing satisfies it."""
    root = np.sqrt(metric)
    g = g / root
    size = np.abs(g).max(axis=1, initial=0.0)
    usable = size > 0
    if (h[~usable] < 0).any():
        return None, np.where(usable | (h >= 0), 0.0, 1.0)
    norm = np.where(
        usable, size * np.sqrt(((g / np.where(usable, size, 1.0)[:, None]) ** 2).sum(axis=1)), 1.0
    )
    g, h = g / norm[:, None], np.where(usable, h / norm, np.inf)
    scale = -h.min(initial=0.0)
    if not scale > 0:
        return np.zeros(g.shape[1]), np.zeros(len(h))
    u = np.zeros(len(h))
    for stretch in 10.0 ** np.arange(0, 16, 4):  # where rows are nearly parallel the solution is far away
        right = h / (scale * stretch)
        kept = np.flatnonzero(right < 1e3)
        columns = -np.vstack([g[kept].T, right[kept]])
        length = np.sqrt((columns**2).sum(axis=0))
        try:
            u[kept], _ = nnls(
                columns / length, np.append(np.zeros(g.shape[1]), 1.0), maxiter=10 * len(h) + 50
            )
        except RuntimeError:
            continue
        u[kept] /= length
        residual = columns @ u[kept]
        residual[-1] -= 1.0
        if -residual[-1] > 1e-9:
            y = -residual[:-1] / residual[-1] * (scale * stretch)
            y, multipliers = _sharpened(y, u * (scale * stretch) / -residual[-1], g, h)
            return y / root, multipliers / norm
        proof = u / norm
    return None, proof


def _sharpened(
    y: np.ndarray, multipliers: np.ndarray, g: np.ndarray, h: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same solution from its active planes, by orthogonal factors; kept if it breaks the planes no more."""
    (held,) = np.nonzero(multipliers > 0)
    if not len(held):
        return y, multipliers
    sharp = np.linalg.lstsq(g[held], h[held], rcond=1e-15)[0]
    lam = np.linalg.lstsq(g[held].T, -sharp, rcond=1e-15)[0]
    if (lam < 0).any() or (g @ sharp - h).max() > max((g @ y - h).max(), 0.0):
        return y, multipliers
    better = np.zeros_like(multipliers)
    better[held] = lam
    return sharp, better
