"""The exact nearest point of a box with separable rows, for a whole batch at once.

    minimise  1/2 sum_i m_i (x_i - a_i)^2   over   low <= x <= high,  f_k(x) <= c_k  (k = 1..K)

For given multipliers the inner minimum is closed form in each coordinate (`_Problem.point`). The dual is
concave with gradient f_k(x) - c_k. It is climbed by an active-set Newton method: take in the row broken most,
step along the Newton direction of the rows taken in as far as an exact line search says, and let go of a row
whose multiplier reaches zero. With one row this is a safeguarded one-dimensional root search.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from rlpd_gx.safe_sets.backend import Array, index_range, namespace
from rlpd_gx.safe_sets.separable import Rows, minimum_over_box

RESIDUAL = 1e-13  # a row is met when it is broken by less than this, relative to the numbers in it
ROUNDING = (
    2e-15  # and by this, relative to the proposal and the multipliers: a - lam * slope is no more exact
)
MAX_STEPS = 40  # and 10 more for each row
MAX_SEARCH = 120


class Solution(NamedTuple):
    """`point` [B, d]; `found` [B]: the method converged; `empty` [B]: proven that no point exists."""

    point: Array
    found: Array
    empty: Array


class _Penalty(NamedTuple):
    """sum_k lam_k f_k as coefficients of max(x,0), max(-x,0) and x^2, each [B, d]."""

    pos: Array
    neg: Array
    quad: Array


@dataclass(frozen=True)
class _Problem:
    """a, low, high, metric [B, d]; rows and the size of their slopes [B, K, d]."""

    a: Array
    low: Array
    high: Array
    metric: Array
    rows: Rows
    steepness: Array

    def __getitem__(self, index: Any) -> "_Problem":
        fields = (self.a, self.low, self.high, self.metric, self.rows, self.steepness)
        return _Problem(*(f[index] for f in fields))

    def penalty(self, weights: Array) -> _Penalty:
        """The rows added up with weights [B, K]."""
        if weights.shape[-1] == 1:
            return _Penalty(*(weights * c[:, 0, :] for c in (self.rows.pos, self.rows.neg, self.rows.quad)))
        row = weights[:, None, :]
        return _Penalty(*((row @ c)[:, 0, :] for c in (self.rows.pos, self.rows.neg, self.rows.quad)))

    def point(self, penalty: _Penalty) -> Array:
        """argmin over the box of 1/2 |x - a|_m^2 + penalty(x) [B, d], closed form in each coordinate."""
        xp = namespace(self.a)
        pull = self.metric * self.a
        x = xp.clip(pull - penalty.pos, 0.0, None) + xp.clip(pull + penalty.neg, None, 0.0)
        return self.clip(x / (self.metric + 2 * penalty.quad))

    def clip(self, x: Array) -> Array:
        xp = namespace(x)
        return xp.minimum(xp.maximum(x, self.low), self.high)

    def tolerance(self, x: Array, lam: Array) -> Array:
        """By how much a row may be broken and still count as met [B, K]: what rounding in a - lam * slope costs."""
        xp = namespace(x)
        size = xp.abs(self.a)
        pulls = (lam[:, None, :] @ self.steepness)[:, 0, :] / self.metric
        # Multipliers far larger than the proposal are on their way to infinity: no excuse for a poor point.
        pulls = size + xp.minimum(pulls, 64 * xp.max(size, axis=-1)[:, None])
        lost = xp.sum(xp.abs(self.rows.slopes(x)) * pulls[:, None, :], axis=-1)
        return RESIDUAL * self.rows.magnitude(x) + ROUNDING * lost

    def mobility(self, penalty: _Penalty, x: Array) -> Array:
        """-d x_i / d slope_i [B, d]: zero for coordinates held at a bound or at the kink at zero."""
        pull = self.metric * self.a
        kink = (x == 0) & (penalty.pos + penalty.neg > 0) & (pull <= penalty.pos) & (pull >= -penalty.neg)
        free = (x > self.low) & (x < self.high) & ~kink
        return namespace(x).where(free, 1 / (self.metric + 2 * penalty.quad), 0.0)


def nearest_point(a: Array, low: Array, high: Array, rows: Rows, metric: Array) -> Solution:
    """Nearest point to a [B, d] with bounds [B, d], rows [B, K, d] and diagonal metric [B, d]."""
    xp = namespace(a)
    low, high, rows = _absorb_zero_bounds(a, low, high, rows)
    empty = xp.any(low > high, axis=-1)
    if rows.bound.shape[-1]:
        least = minimum_over_box(rows, low, high)
        slack = 1e-12 * xp.abs(xp.where(xp.isfinite(rows.bound), rows.bound, 0.0))
        nothing = (rows.bound == -xp.inf) | (least > rows.bound + slack)
        empty = empty | xp.any(nothing, axis=-1)
    rows, steepness = _normalised(a, low, high, rows)
    problem = _Problem(a, low, high, metric, rows, steepness)
    point = problem.clip(a)
    found = ~empty & ~xp.any(xp.isnan(point), axis=-1)
    if not rows.bound.shape[-1]:
        return Solution(point, found, empty)
    none_yet = xp.zeros_like(problem.rows.bound)
    broken = found & xp.any(problem.rows.excess(point) > problem.tolerance(point, none_yet), axis=-1)
    (todo,) = xp.nonzero(broken)
    if len(todo):
        point[todo], found[todo], empty[todo] = _climb(problem[todo])
    return Solution(point, found, empty)


def _absorb_zero_bounds(a: Array, low: Array, high: Array, rows: Rows) -> tuple[Array, Array, Rows]:
    """Non-negative terms that must sum to zero are each zero: such a row is a bound.

    Left as a row it would need an infinite multiplier, since the set has no interior. A threshold below what
    rounding can tell from zero, seen from the proposal, counts as zero.
    """
    xp = namespace(low)
    tiny = xp.where(xp.any(rows.quad > 0, axis=-1), 1e-28, 1e-14) * xp.sum(xp.abs(rows.terms(a)), axis=-1)
    tight = (rows.bound >= 0) & (rows.bound <= tiny) & xp.all((rows.pos >= 0) & (rows.neg >= 0), axis=-1)
    if not xp.any(tight):
        return low, high, rows
    tight = tight[..., None]
    not_above = xp.any(tight & ((rows.pos > 0) | (rows.quad > 0)), axis=-2)
    not_below = xp.any(tight & ((rows.neg > 0) | (rows.quad > 0)), axis=-2)
    zero = xp.zeros_like(low)
    keep = xp.where(tight, 0.0, 1.0)
    return (
        xp.where(not_below, xp.maximum(low, zero), low),
        xp.where(not_above, xp.minimum(high, zero), high),
        Rows(rows.pos * keep, rows.neg * keep, rows.quad * keep, rows.bound),
    )


def _normalised(a: Array, low: Array, high: Array, rows: Rows) -> tuple[Rows, Array]:
    """Rows scaled to slopes of order one, so that multipliers are of the order of distances; those slopes."""
    xp = namespace(a)
    reach = xp.minimum(xp.abs(a) + 1.0, xp.maximum(xp.abs(low), xp.abs(high)))[:, None, :]
    slope = xp.maximum(xp.abs(rows.pos), xp.abs(rows.neg)) + 2 * rows.quad * xp.where(reach > 0, reach, 1.0)
    if not slope.shape[1]:
        return rows, slope
    size = xp.max(slope, axis=-1)
    size = xp.where((size > 0) & xp.isfinite(size), size, 1.0)
    binds = rows.bound < xp.inf  # a row with an infinite bound is padding
    scale = xp.where(binds, 1 / size, 0.0)[..., None]
    bound = xp.where(binds, rows.bound / size, 1.0)
    return Rows(rows.pos * scale, rows.neg * scale, rows.quad * scale, bound), slope * scale


def _climb(problem: _Problem) -> Solution:
    """Dual ascent for a batch in which every problem has a broken row at the start."""
    xp = namespace(problem.a)
    count, k = problem.rows.bound.shape
    lam = xp.zeros_like(problem.rows.bound)
    point = problem.clip(problem.a)
    found, empty = lam[:, 0] > 0, lam[:, 0] > 0
    reach = xp.maximum(xp.abs(problem.high - problem.a), xp.abs(problem.low - problem.a))
    farthest = 0.5 * xp.sum(problem.metric * reach * reach, axis=-1)
    left = index_range(count, lam)  # the problems not finished yet
    for _ in range(MAX_STEPS + 10 * k):
        part = problem if len(left) == count else problem[left]
        new = _ascent_step(part, lam[left])
        x = part.point(part.penalty(new))
        lam[left], point[left] = new, x
        excess = part.rows.excess(x)
        error = xp.where(new > 0, xp.abs(excess), xp.clip(excess, 0.0, None))
        met = xp.all(error <= part.tolerance(x, new), axis=-1)
        # Weak duality: a dual value above every possible distance proves that nothing is feasible.
        dual = 0.5 * xp.sum(part.metric * (x - part.a) ** 2, axis=-1) + xp.sum(new * excess, axis=-1)
        hopeless = ~met & (dual > (1 + 1e-9) * farthest[left])
        found[left], empty[left] = met, hopeless
        left = left[~(met | hopeless)]
        if not len(left):
            break
    return Solution(point, found, empty)


def _ascent_step(problem: _Problem, lam: Array) -> Array:
    """One Newton step on the rows taken in, with exact line search: new multipliers [B, K]."""
    xp = namespace(lam)
    start = problem.penalty(lam)
    x = problem.point(start)
    excess = problem.rows.excess(x)
    if lam.shape[-1] == 1:
        direction = xp.where(excess > 0, 1.0, -1.0)
    else:
        direction = _newton_direction(problem, lam, start, x, excess)
    # The first multiplier that would turn negative ends the step.
    falling = direction < 0
    room = xp.where(falling, lam / xp.where(falling, -direction, 1.0), xp.inf)
    t = _line_search(problem, start, direction, xp.min(room, axis=-1))[:, None]
    return xp.where(falling & (room <= t), 0.0, xp.clip(lam + t * direction, 0.0, None))


def _newton_direction(problem: _Problem, lam: Array, start: _Penalty, x: Array, excess: Array) -> Array:
    """Newton direction over the rows with a multiplier and the one broken most [B, K]."""
    xp = namespace(lam)
    every = index_range(lam.shape[0], lam)
    broken = (lam <= 0) & (excess > problem.tolerance(x, lam))
    worst = xp.argmax(xp.where(broken, excess, -xp.inf), axis=-1)
    # A new row waits until those taken in are met at least as well, or tiny steps between rows never end.
    unrest = xp.max(xp.where(lam > 0, xp.abs(excess), 0.0), axis=-1)
    fresh = broken[every, worst] & (excess[every, worst] >= unrest)
    taken = lam > 0
    taken[every, worst] = taken[every, worst] | fresh

    # Gather the rows taken in, so that the linear systems stay as small as the active set.
    width = max(1, int(xp.max(xp.sum(xp.astype(taken, xp.int64), axis=-1))))
    order = xp.argsort(xp.astype(~taken, xp.int8), axis=-1, stable=True)[:, :width]
    real = xp.take_along_axis(taken, order, axis=-1)
    slopes = xp.where(real[..., None], problem.rows.slopes(x)[every[:, None], order], 0.0)
    hessian = (slopes * problem.mobility(start, x)[:, None, :]) @ xp.matrix_transpose(slopes)
    largest = xp.max(xp.max(xp.abs(hessian), axis=-1), axis=-1)[:, None]
    damping = xp.where(real, 1e-13 * largest + 1e-14, 1.0)
    hessian = hessian + damping[..., None] * xp.eye(width, dtype=lam.dtype, device=lam.device)
    right = xp.where(real, xp.take_along_axis(excess, order, axis=-1), 0.0)
    step = xp.linalg.solve(hessian, right[..., None])[..., 0]
    direction = xp.zeros_like(lam)
    direction[every[:, None], order] = step

    # Where the Newton model is flat or points the wrong way, climb along the row broken most alone.
    wild = ~xp.all(xp.isfinite(step), axis=-1) | (xp.max(xp.abs(step), axis=-1) > 1e9)
    wrong = (direction[every, worst] <= 0) | ~(xp.sum(direction * excess, axis=-1) > 0)
    (alone,) = xp.nonzero(fresh & (wild | wrong))
    if len(alone):
        direction[alone] = 0.0
        direction[alone, worst[alone]] = 1.0
    return direction


def _line_search(problem: _Problem, start: _Penalty, direction: Array, longest: Array) -> Array:
    """The step in (0, longest] at which the dual stops rising along the direction [B]; bracketed Newton.

    The dual's slope along the ray, sum_k direction_k (f_k(x(t)) - c_k), falls as t grows.
    """
    xp = namespace(longest)
    ray = problem.penalty(direction)
    offset = xp.sum(direction * problem.rows.bound, axis=-1)
    t = xp.minimum(xp.ones_like(longest), longest)
    lower, upper = xp.zeros_like(t), 1.0 * longest
    left = index_range(len(t), t)
    for _ in range(MAX_SEARCH):
        if len(left) == len(t):
            part, begin, along = problem, start, ray
        else:
            part = problem[left]
            begin, along = _Penalty(*(p[left] for p in start)), _Penalty(*(p[left] for p in ray))
        now = t[left]
        here = _Penalty(*(p + now[:, None] * r for p, r in zip(begin, along, strict=True)))
        x = part.point(here)
        terms = along.pos * xp.clip(x, 0.0, None) - along.neg * xp.clip(x, None, 0.0) + along.quad * x * x
        slope = xp.sum(terms, axis=-1) - offset[left]
        size = xp.sum(xp.abs(terms), axis=-1) + xp.abs(offset[left])
        tangent = xp.where(x >= 0, along.pos, -along.neg) + 2 * along.quad * x
        curvature = xp.sum(tangent * tangent * part.mobility(here, x), axis=-1)
        lo = xp.where(slope > 0, now, lower[left])
        hi = xp.where(slope > 0, upper[left], now)
        newton = now + slope / xp.where(curvature > 0, curvature, xp.inf)
        # Nearly flat is no reason to leap: while there is no upper end, grow step by step.
        newton = xp.where(xp.isfinite(hi), newton, xp.minimum(newton, 64.0 * now))
        # Outside the bracket Newton is no guide: halve it, or widen it while it has no upper end.
        bounded = xp.isfinite(hi)
        middle = xp.where(bounded, 0.5 * (lo + xp.where(bounded, hi, lo)), 8.0 * now)
        following = xp.where((curvature > 0) & (newton > lo) & (newton < hi), newton, middle)
        finished = (
            (xp.abs(slope) <= 1e-15 * size)
            | ((slope > 0) & (now >= longest[left]))
            | (bounded & (hi - lo <= 4e-16 * hi))
            | ((curvature > 0) & (xp.abs(newton - now) <= 2e-16 * now))
            | (now > 1e30)
        )
        lower[left], upper[left] = lo, hi
        t[left] = xp.where(finished, now, xp.minimum(following, longest[left]))
        left = left[~finished]
        if not len(left):
            break
    return t
