"""The exact nearest point of a box with separable rows, for a whole batch at once.

    minimise  1/2 sum_i m_i (x_i - a_i)^2   over   low <= x <= high,  f_k(x) <= c_k  (k = 1..K)

For given multipliers the inner minimum is closed form in each coordinate (`_Problem.point`). The dual is
concave with gradient f_k(x) - c_k. It is climbed by an active-set Newton method: activate the row broken most,
step along the Newton direction of the active rows with an exact line search, and deactivate a row whose
multiplier reaches zero. With one row this is a safeguarded one-dimensional root search.

Internally the batch is the last axis: coordinates are few and problems many, so every operation runs over long rows.
"""

from dataclasses import dataclass
from typing import NamedTuple

from rlpd_gx.safe_sets.backend import Array, index_range, namespace, row_any
from rlpd_gx.safe_sets.base import Index
from rlpd_gx.safe_sets.separable import Rows, minimum_over_box

RESIDUAL = 1e-13  # a row is met when it is broken by less than this, relative to the numbers in it
ROUNDING = (
    2e-15  # and by this, relative to the proposal and the multipliers: a - lam * slope is no more exact
)
MAX_STEPS = 12  # and 3 more for each row; what has not converged by then goes to last_resort
MAX_SEARCH = 60
FAR = 2.0**16  # a proposal further away than this many diameters of the set is brought nearer first


class Solution(NamedTuple):
    """`point` [B, d]; `found` [B]: the method converged; `proof` [B, K]: multipliers that may prove emptiness."""

    point: Array
    found: Array
    proof: Array


class _Penalty(NamedTuple):
    """sum_k lam_k f_k as coefficients of max(x,0), max(-x,0) and x^2, each [d, B]."""

    pos: Array
    neg: Array
    quad: Array


@dataclass(frozen=True)
class _Problem:
    """a, low, high, metric [d, B]; pos, neg, quad and the size of the slopes [K, d, B]; bound [K, B].

    Terms that are absent cost nothing: kinks (else neg = -pos), curvature (else quad = 0), a metric (else 1).
    """

    a: Array
    low: Array
    high: Array
    metric: Array
    pos: Array
    neg: Array
    quad: Array
    steepness: Array
    bound: Array
    kinked: bool
    curved: bool
    weighted: bool

    def at(self, index: Index) -> "_Problem":
        arrays = (
            self.a,
            self.low,
            self.high,
            self.metric,
            self.pos,
            self.neg,
            self.quad,
            self.steepness,
            self.bound,
        )
        return _Problem(*(v[..., index] for v in arrays), self.kinked, self.curved, self.weighted)  # type: ignore[call-arg]

    @property
    def rows(self) -> _Penalty:
        """The coefficients of all rows [K, d, B]."""
        return _Penalty(self.pos, self.neg, self.quad)

    def combine(self, penalty: _Penalty, x: Array) -> Array:
        """The summands of a penalty, or of all rows, at x [d, B]."""
        xp = namespace(x)
        value = penalty.pos * (xp.clip(x, 0.0, None) if self.kinked else x)
        if self.kinked:
            value = value - penalty.neg * xp.clip(x, None, 0.0)
        return value + penalty.quad * (x * x) if self.curved else value

    def slope(self, penalty: _Penalty, x: Array) -> Array:
        """Its derivative, from the right at a kink."""
        value = namespace(x).where(x >= 0, penalty.pos, -penalty.neg) if self.kinked else penalty.pos
        return value + 2 * penalty.quad * x if self.curved else value

    def excess(self, x: Array) -> Array:
        """f_k(x) - c_k [K, B]."""
        return namespace(x).sum(self.combine(self.rows, x), axis=1) - self.bound

    def penalty(self, weights: Array) -> _Penalty:
        """The rows added up with weights [K, B]."""
        pos = self._added(weights, self.pos)
        neg = self._added(weights, self.neg) if self.kinked else -pos
        return _Penalty(pos, neg, self._added(weights, self.quad) if self.curved else pos)

    def further(self, start: _Penalty, t: Array, ray: _Penalty) -> _Penalty:
        """start + t * ray."""
        pos = start.pos + t * ray.pos
        neg = start.neg + t * ray.neg if self.kinked else pos
        return _Penalty(pos, neg, start.quad + t * ray.quad if self.curved else pos)

    def _added(self, weights: Array, coefficients: Array) -> Array:
        total = weights[0] * coefficients[0]
        for k in range(1, len(weights)):
            total = total + weights[k] * coefficients[k]
        return total

    def point(self, penalty: _Penalty) -> Array:
        """argmin over the box of 1/2 |x - a|_m^2 + penalty(x) [d, B], closed form in each coordinate."""
        xp = namespace(self.a)
        pull = self.metric * self.a if self.weighted else self.a
        x = pull - penalty.pos
        if self.kinked:
            x = xp.clip(x, 0.0, None) + xp.clip(pull + penalty.neg, None, 0.0)
        if self.weighted or self.curved:
            x = x / self._stiffness(penalty)
        return self.clip(x)

    def _stiffness(self, penalty: _Penalty) -> Array:
        return self.metric + 2 * penalty.quad if self.curved else self.metric

    def clip(self, x: Array) -> Array:
        xp = namespace(x)
        return xp.minimum(xp.maximum(x, self.low), self.high)

    def mobility(self, penalty: _Penalty, x: Array) -> Array:
        """-d x_i / d slope_i [d, B]: zero for coordinates held at a bound or at the kink at zero."""
        free = (x > self.low) & (x < self.high)
        if self.kinked:
            free = free & (x != 0)
        return free / self._stiffness(penalty) if self.weighted or self.curved else free

    def tolerance(self, x: Array, lam: Array) -> Array:
        """By how much a row may be broken and still count as met [K, B]: what rounding in a - lam * slope costs."""
        xp = namespace(x)
        size = xp.abs(self.a)
        pulls = self._added(lam, self.steepness) / self.metric
        # Multipliers far larger than the proposal are diverging: they must not loosen the tolerance.
        pulls = size + xp.minimum(pulls, 64 * xp.max(size, axis=0))
        lost = xp.sum(xp.abs(self.slope(self.rows, x)) * pulls, axis=1)
        magnitude = xp.sum(xp.abs(self.combine(self.rows, x)), axis=1) + xp.abs(self.bound)
        return RESIDUAL * magnitude + ROUNDING * lost


def nearest_point(a: Array, low: Array, high: Array, rows: Rows, metric: Array) -> Solution:
    """Nearest point to a [B, d] with bounds [B, d], rows [B, K, d] and diagonal metric [B, d]."""
    unit = units(a, low, high, rows)
    if unit is None:
        return _nearest_point(a, low, high, rows, metric)
    point, found, proof = _nearest_point(*in_units(a, low, high, rows, unit), metric)
    return Solution(point * unit, found, proof)


def units(a: Array, low: Array, high: Array, rows: Rows) -> Array | None:
    """Powers of two by which actions [B, 1] should be divided, so that their squares neither vanish nor overflow.

    They are of the order of the proposal, or of the way from it to the set where that is longer. None if 1 will do.
    """
    xp = namespace(a)
    inside = xp.minimum(xp.maximum(a, low), high)
    size = xp.max(xp.maximum(xp.abs(a), xp.abs(inside)), axis=-1)[:, None]
    if rows.bound.shape[-1]:
        slope = xp.max(xp.maximum(xp.abs(rows.pos), xp.abs(rows.neg)), axis=-1)
        way = xp.where(slope > 0, rows.excess(inside) / xp.where(slope > 0, slope, 1.0), 0.0)
        way = xp.max(xp.where(xp.isfinite(way), way, 0.0), axis=-1)[:, None]
        size = xp.maximum(size, way)
    odd = (size > 0) & ((size < 2.0**-60) | (size > 2.0**60)) & xp.isfinite(size)
    return 2.0 ** xp.floor(xp.log2(xp.where(odd, size, 1.0))) if bool(xp.any(odd)) else None


def in_units(a: Array, low: Array, high: Array, rows: Rows, unit: Array) -> tuple[Array, Array, Array, Rows]:
    """The problem in x' = x / unit; its rows are those of x divided by the unit."""
    scaled = rows.with_arrays(rows.pos, rows.neg, rows.quad * unit[..., None], rows.bound / unit)
    return a / unit, low / unit, high / unit, scaled


def _nearest_point(a: Array, low: Array, high: Array, rows: Rows, metric: Array) -> Solution:
    xp = namespace(a)
    proof = xp.zeros_like(rows.bound)
    low, high, rows = _absorb_zero_bounds(a, low, high, rows)
    found = ~row_any(low > high)
    if proof.shape[-1]:
        lacking = minimum_over_box(rows, low, high) - rows.bound
        slack = 1e-12 * xp.abs(xp.where(xp.isfinite(rows.bound), rows.bound, 0.0))
        (hopeless,) = xp.nonzero(xp.any((lacking > slack) | (rows.bound == -xp.inf), axis=-1))
        if len(hopeless):
            proof[hopeless, xp.argmax(lacking[hopeless], axis=-1)] = 1.0
            found[hopeless] = False
    point = xp.minimum(xp.maximum(a, low), high)
    found = found & ~row_any(xp.isnan(point))
    if not proof.shape[-1]:
        return Solution(point, found, proof)
    (todo,) = xp.nonzero(found & xp.any(rows.excess(point) > 0, axis=-1))
    if len(todo):
        problem, scale = stated(a[todo], low[todo], high[todo], rows[todo], metric[todo])
        x, found[todo], multipliers = _climb(problem)
        point[todo] = x.T
        proof[todo] = multipliers.T * scale
    return Solution(point, found, proof)


def bring_near(a: Array, low: Array, high: Array, rows: Rows, metric: Array) -> Array:
    """Proposals [B, d] no further than `FAR` diameters from the set, so that rounding does not depend on them.

    A proposal v away from the centre of a box of diameter D is moved along the straight line to that centre until it
    is FAR * D away. The point nearest to the moved proposal is at most 1 + 1 / (2 FAR^2) times as far from the
    original one as the nearest point of the set, a relative difference of 1.2e-10. (With s = FAR D / |v|, expanding
    both squares shows that the squared distances differ by at most D^2 / s.) Unbounded sets are left as they are.
    """
    xp = namespace(a)
    if rows.bound.shape[-1] and (rows.kinked or rows.curved):
        low, high = _implied_bounds(low, high, rows)
    centre, span = 0.5 * low + 0.5 * high, high - low
    v = a - centre
    far = xp.sum(metric * v * v, axis=-1) > FAR**2 * xp.sum(metric * span * span, axis=-1)
    (todo,) = xp.nonzero(far & xp.all(span >= 0, axis=-1) & xp.all(xp.isfinite(a), axis=-1))
    if not len(todo):
        return a
    centre, span, root = centre[todo], span[todo], xp.sqrt(metric[todo])
    v = root * (0.25 * a[todo] - 0.25 * centre)  # a difference of two large numbers may overflow

    def length(u: Array) -> tuple[Array, Array]:
        largest = xp.max(xp.abs(u), axis=-1)[:, None]
        u = u / xp.where(largest > 0, largest, 1.0)
        return u, largest * xp.sqrt(xp.sum(u * u, axis=-1))[:, None]

    direction, _ = length(v)
    norm = xp.sqrt(xp.sum(direction * direction, axis=-1))[:, None]
    moved = centre + FAR * length(root * span)[1] * direction / xp.where(norm > 0, norm, 1.0) / root
    a = xp.asarray(a, copy=True)
    a[todo] = moved
    return a


def _implied_bounds(low: Array, high: Array, rows: Rows) -> tuple[Array, Array]:
    """Bounds [B, d] that include those following from rows whose terms are never negative."""
    xp = namespace(low)
    grows = ~row_any((rows.pos < 0) | (rows.neg < 0)) & (rows.bound >= 0)
    c = xp.where(grows, rows.bound, xp.inf)[..., None]

    def reach(slope: Array) -> Array:
        far = xp.where(slope > 0, c / xp.where(slope > 0, slope, 1.0), xp.inf)
        if rows.curved:
            square = c / xp.where(rows.quad > 0, rows.quad, 1.0)
            far = xp.minimum(far, xp.where(rows.quad > 0, xp.sqrt(square), xp.inf))
        return xp.min(far, axis=-2)

    return xp.maximum(low, -reach(rows.neg)), xp.minimum(high, reach(rows.pos))


def _absorb_zero_bounds(a: Array, low: Array, high: Array, rows: Rows) -> tuple[Array, Array, Rows]:
    """Non-negative terms that must sum to zero are each zero: such a row is a bound.

    Left as a row it would need an infinite multiplier, since the set has no interior. A threshold below what
    rounding can tell from zero, seen from the proposal, counts as zero; what follows about emptiness is no proof.
    """
    xp = namespace(low)
    if not rows.kinked and not rows.curved:
        return low, high, rows
    grows = ~row_any((rows.pos < 0) | (rows.neg < 0))
    tiny = xp.where(row_any(rows.quad > 0), 1e-28, 1e-14) * (rows.magnitude(a) - xp.abs(rows.bound))
    tight = (rows.bound >= 0) & (rows.bound <= tiny) & grows
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
        rows.with_arrays(rows.pos * keep, rows.neg * keep, rows.quad * keep, rows.bound),
    )


def stated(a: Array, low: Array, high: Array, rows: Rows, metric: Array) -> tuple[_Problem, Array]:
    """The problem with rows scaled to slopes of order one, so that multipliers are of the order of distances.

    And the scales of the rows [B, K]: multipliers times scale are those of the original rows.
    """
    xp = namespace(a)
    slope = xp.maximum(xp.abs(rows.pos), xp.abs(rows.neg)) if rows.kinked else xp.abs(rows.pos)
    if rows.curved:
        reach = xp.minimum(xp.abs(a) + 1.0, xp.maximum(xp.abs(low), xp.abs(high)))[:, None, :]
        slope = slope + 2 * rows.quad * xp.where(reach > 0, reach, 1.0)
    size = xp.max(slope, axis=-1)
    size = xp.where((size > 0) & xp.isfinite(size), size, 1.0)
    binds = rows.bound < xp.inf  # a row with an infinite bound is padding
    scale = xp.where(binds, 1 / size, 0.0)[..., None]

    def turned(v: Array) -> Array:  # the batch to the end
        return xp.asarray(xp.moveaxis(v, 0, -1), copy=True)

    arrays = (a, low, high, metric, *(v * scale for v in (rows.pos, rows.neg, rows.quad, slope)))
    problem = _Problem(
        *(turned(v) for v in (*arrays, xp.where(binds, rows.bound / size, 1.0))),
        rows.kinked,  # type: ignore[call-arg]
        rows.curved,
        bool(xp.any(metric != 1)),
    )
    return problem, scale[..., 0]


def _climb(problem: _Problem) -> tuple[Array, Array, Array]:
    """Dual ascent from no multipliers: points [d, B], which of them were found [B], multipliers [K, B]."""
    xp = namespace(problem.a)
    k, count = problem.bound.shape
    lam = xp.zeros_like(problem.bound)
    point = problem.clip(problem.a)
    found = xp.all(problem.excess(point) <= problem.tolerance(point, lam), axis=0)
    settled = xp.zeros_like(found)
    reach = xp.maximum(xp.abs(problem.high - problem.a), xp.abs(problem.low - problem.a))
    farthest = 0.5 * xp.sum(problem.metric * reach * reach, axis=0)
    left = index_range(count, lam)[~found]  # the problems not finished yet
    for _ in range(MAX_STEPS + 3 * k):
        if not len(left):
            break
        part = problem if len(left) == count else problem.at(left)
        new = _ascent_step(part, lam[:, left])
        x = part.point(part.penalty(new))
        lam[:, left], point[:, left] = new, x
        excess = part.excess(x)
        error = xp.where(new > 0, xp.abs(excess), xp.clip(excess, 0.0, None))
        met = xp.all(error <= part.tolerance(x, new), axis=0)
        # Weak duality: with a dual value above every possible distance the multipliers prove that nothing is feasible.
        dual = 0.5 * xp.sum(part.metric * (x - part.a) ** 2, axis=0) + xp.sum(new * excess, axis=0)
        hopeless = ~met & (dual > (1 + 1e-9) * farthest[left])
        found[left] = met
        # In degenerate problems multipliers may keep moving over points that rounding cannot tell apart. Such a
        # point is accepted if it is feasible and no other is nearer by more than the gap between primal and dual.
        primal = 0.5 * xp.sum(part.metric * (x - part.a) ** 2, axis=0)
        close = xp.all(excess <= 1e-15 * xp.sum(part.steepness, axis=1), axis=0)
        good = close & (primal - dual <= 1e-10 * primal)
        settled[left] = ~met & good
        left = left[~(met | hopeless)]
    found[left] = settled[left]
    return point, found, lam


def _ascent_step(problem: _Problem, lam: Array) -> Array:
    """One Newton step on the active rows, with exact line search: new multipliers [K, B]."""
    xp = namespace(lam)
    start = problem.penalty(lam)
    x = problem.point(start)
    excess = problem.excess(x)
    direction = xp.where(excess > 0, 1.0, -1.0)
    if len(lam) > 1:
        direction = _newton_direction(problem, lam, start, x, excess)
    # The first multiplier that would turn negative ends the step.
    falling = direction < 0
    room = xp.where(falling, lam / xp.where(falling, -direction, 1.0), xp.inf)
    t = _line_search(problem, start, direction, xp.min(room, axis=0))
    return xp.where(falling & (room <= t), 0.0, xp.clip(lam + t * direction, 0.0, None))


def _newton_direction(problem: _Problem, lam: Array, start: _Penalty, x: Array, excess: Array) -> Array:
    """Newton direction over the rows with a multiplier and the one broken most [K, B]."""
    xp = namespace(lam)
    every = index_range(lam.shape[-1], lam)
    broken = (lam <= 0) & (excess > problem.tolerance(x, lam))
    worst = xp.argmax(xp.where(broken, excess, -xp.inf), axis=0)
    # A new row waits until the active ones are met at least as well, or tiny steps between rows never end.
    unrest = xp.max(xp.where(lam > 0, xp.abs(excess), 0.0), axis=0)
    fresh = broken[worst, every] & (excess[worst, every] >= unrest)
    taken = lam > 0
    taken[worst, every] = taken[worst, every] | fresh

    # Gather the active rows, so that the linear systems stay as small as the active set.
    width = max(1, int(xp.max(xp.sum(xp.astype(taken, xp.int64), axis=0))))
    order = xp.argsort(xp.astype(~taken, xp.int8), axis=0, stable=True)[:width]  # [width, B]
    real = taken[order, every]
    slopes = xp.moveaxis(problem.slope(problem.rows, x), -1, 0)[every[:, None], order.T]  # [B, width, d]
    slopes = xp.where(real.T[..., None], slopes, 0.0)
    hessian = (slopes * problem.mobility(start, x).T[:, None, :]) @ xp.matrix_transpose(slopes)
    largest = xp.max(xp.max(xp.abs(hessian), axis=-1), axis=-1)[:, None]
    damping = xp.where(real.T, 1e-13 * largest + 1e-14, 1.0)
    hessian = hessian + damping[..., None] * xp.eye(width, dtype=lam.dtype, device=lam.device)
    right = xp.where(real, excess[order, every], 0.0).T[..., None]
    step = (right / hessian if width == 1 else xp.linalg.solve(hessian, right))[..., 0].T
    direction = xp.zeros_like(lam)
    direction[order, every] = step

    # Where the Newton model is flat or points the wrong way, use only the row broken most.
    wild = ~xp.all(xp.isfinite(step), axis=0) | (xp.max(xp.abs(step), axis=0) > 1e9)
    wrong = (direction[worst, every] <= 0) | ~(xp.sum(direction * excess, axis=0) > 0)
    (alone,) = xp.nonzero(fresh & (wild | wrong))
    if len(alone):
        direction[:, alone] = 0.0
        direction[worst[alone], alone] = 1.0
    return direction


def _line_search(problem: _Problem, start: _Penalty, direction: Array, longest: Array) -> Array:
    """The step in (0, longest] at which the dual stops rising along the direction [B]; bracketed Newton.

    The dual's slope along the ray, sum_k direction_k (f_k(x(t)) - c_k), falls as t grows.
    """
    xp = namespace(longest)
    ray = problem.penalty(direction)
    offset = xp.sum(direction * problem.bound, axis=0)
    answer = xp.zeros_like(longest)
    left = index_range(len(longest), longest)
    # A Newton direction starts with the full step; along a single row the first step has to be found.
    t = xp.minimum(xp.zeros_like(longest) + (len(direction) > 1), longest)
    low, high, finished = xp.zeros_like(t), 1.0 * longest, t < 0
    one_ellipsoid = problem.curved and not problem.kinked and len(direction) == 1 and bool(xp.all(offset > 0))
    # Numbers as large as the thresholds cancel in the slope: that much of it is rounding.
    enough = 1e-14 * xp.sum(xp.abs(direction * problem.bound), axis=0)
    for _ in range(MAX_SEARCH):
        here = problem.further(start, t, ray)
        x = problem.point(here)
        terms = problem.combine(ray, x)
        slope = xp.sum(terms, axis=0) - offset
        tangent = problem.slope(ray, x)
        curvature = xp.sum(tangent * tangent * problem.mobility(here, x), axis=0)
        low, high = xp.where(slope > 0, t, low), xp.where(slope > 0, high, t)
        # For one ellipsoid 1/sqrt(f) is nearly linear in t while f is not: a Newton step on it converges fast.
        gain = 2 * (slope + offset) * (xp.sqrt((slope + offset) / offset) - 1) if one_ellipsoid else slope
        newton = t + gain / xp.where(curvature > 0, curvature, xp.inf)
        # No large jump where the slope is nearly flat: while there is no upper end, grow step by step.
        bounded = xp.isfinite(high)
        newton = xp.where(bounded, newton, xp.minimum(newton, 64.0 * (t + 1.0)))
        # Outside the bracket Newton is not usable: halve the bracket, or widen it while it has no upper end.
        middle = xp.where(bounded, 0.5 * (low + xp.where(bounded, high, low)), 8.0 * t + 1.0)
        following = xp.where((curvature > 0) & (newton > low) & (newton < high), newton, middle)
        finished = finished | (
            (xp.abs(slope) <= enough)
            | ((slope > 0) & (t >= longest))
            | (bounded & (high - low <= 4e-16 * high))
            | ((curvature > 0) & (xp.abs(newton - t) <= 2e-16 * t))
            | (t > 1e30)
        )
        t = xp.where(finished, t, xp.minimum(following, longest))
        remaining = len(t) - int(xp.sum(xp.astype(finished, xp.int64)))
        if remaining > 0.7 * len(t):
            continue  # gathering the rest would cost more than keeping the finished ones
        answer[left[finished]] = t[finished]
        if not remaining:
            return answer
        (rest,) = xp.nonzero(~finished)
        left, problem = left[rest], problem.at(rest)
        start, ray = (_Penalty(*(v[:, rest] for v in p)) for p in (start, ray))
        t, low, high, finished = t[rest], low[rest], high[rest], finished[rest]
        offset, enough, longest = offset[rest], enough[rest], longest[rest]
    answer[left] = t
    return answer
