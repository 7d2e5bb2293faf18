"""One projection at a time, compiled: the method of `solver.py` and `convex.py` without the cost of array calls.

This file is imported only where numba is installed; `compiled.py` decides. Everything here works on one problem, in
float64, and answers UNSURE where anything is unusual: huge or tiny numbers, zero thresholds, sets without room, slow
convergence. The reference takes over there. A point is returned only after the exact check of every row.

Memory of one problem with d components and k rows: `D` [14, d], `E` [8, k], `R` [4, k, d], `H` [k, k + 2].
All functions are in one file, since numba's cache looks at the time of a function's own file only.
"""

# mypy: disable-error-code="no-untyped-def"
# numba infers the types of compiled functions.

import numpy as np
from numba import njit

from rlpd_gx.safe_sets.exact import RANGE, SPLITTER, UNDERFLOW, UNIT
from rlpd_gx.safe_sets.solver import FAR, MAX_SEARCH, MAX_STEPS, RESIDUAL, ROUNDING

INSIDE, MOVED, EMPTY, UNSURE = 0, 1, 2, 3  # EMPTY: multipliers that may prove it
SMALLEST, LARGEST = 2.0**-60, 2.0**60  # actions outside this range have squares that vanish or overflow
HALF_EPS_32 = 2.0**-24

# Rows of D: proposal, bounds, metric, metric * proposal, point, and coefficients of two penalties (pos, neg, quad).
A, LOW, HIGH, METRIC, PULL, X, PP, PN, PQ, RP, RN, RQ, INNER_LOW, INNER_HIGH = range(14)
# Rows of E: threshold aimed at, multiplier, excess, tolerance, direction, slack, scale, saved multiplier.
BOUND, LAM, EXCESS, TOLERANCE, DIRECTION, SLACK, SCALE, KEPT = range(8)
POS, NEG, QUAD, STEEP = range(4)  # of R


def _inlined(function):  # passing arrays to a function costs as much as the arithmetic of a small problem
    return njit(inline="always", error_model="numpy")(function)


def _jit(function):
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return njit(nogil=True, error_model="numpy")(function)


# --- exact signs ----------------------------------------------------------------------------------------------


@_jit
def two_product(a, b):
    """a * b as an unevaluated sum of two numbers."""
    product = a * b
    large = SPLITTER * a
    high_a = large - (large - a)
    low_a = a - high_a
    large = SPLITTER * b
    high_b = large - (large - b)
    low_b = b - high_b
    return product, low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)


@_inlined
def excess(pos, neg, quad, bound, b, k, kinked, curved, x, row):
    """f(x[row]) - c of row k of set b with the sign of exact arithmetic; NaN where the sign is not certain."""
    d = x.shape[1]
    value, size, largest, c = 0.0, 0.0, 0.0, bound[b, k]
    for i in range(d):
        v = x[row, i]
        slope = -neg[b, k, i] if kinked and v < 0 else pos[b, k, i]
        term = slope * v
        size += abs(term)
        if curved:  # both parts of a term are counted: where they cancel, their roundings do not
            square = quad[b, k, i] * v * v
            term += square
            size += square
            largest = max(largest, abs(v))
        value += term
    value -= c
    error = (d + 8) * UNIT * (size + abs(c)) + UNDERFLOW * (1.0 + largest)
    if abs(value) > error or c == np.inf:
        return value
    return _summed_exactly(pos, neg, quad, bound, b, k, x, row)


@_jit
def _summed_exactly(pos, neg, quad, bound, b, k, x, row):
    d = x.shape[1]
    parts = np.empty(6 * d + 1)
    count = 0
    for i in range(d):
        v = x[row, i]
        slope, q = (pos[b, k, i] if v >= 0 else -neg[b, k, i]), quad[b, k, i]
        for factor in (abs(v), abs(slope), q):
            if not (factor == 0 or RANGE[0] <= factor <= RANGE[1]):
                return np.nan
        parts[count], parts[count + 1] = two_product(slope, v)
        count += 2
        if q != 0:
            high, low = two_product(v, v)
            parts[count], parts[count + 1] = two_product(q, high)
            parts[count + 2], parts[count + 3] = two_product(q, low)
            count += 4
    c = abs(bound[b, k])
    if not (c == 0 or RANGE[0] <= c <= RANGE[1]):
        return np.nan
    parts[count] = -bound[b, k]
    count += 1
    for _ in range(3):
        for j in range(1, count):
            left, right = parts[j], parts[j - 1]
            total = left + right
            shadow = total - left
            parts[j] = total
            parts[j - 1] = (left - (total - shadow)) + (right - shadow)
    rest, small = 0.0, 0.0
    for j in range(count - 1):
        rest += abs(parts[j])
        small += parts[j]
    if rest == 0 or abs(parts[count - 1]) > 2 * rest:
        return parts[count - 1] + small
    return np.nan


# --- the dual method ------------------------------------------------------------------------------------------


@_inlined
def _add_up(D, E, R, weights, target, kinked, curved):
    """The rows added up with weights E[weights]: coefficients into D[target], D[target + 1], D[target + 2]."""
    k, d = R.shape[1], R.shape[2]
    for i in range(d):
        D[target, i] = D[target + 1, i] = D[target + 2, i] = 0.0
    for j in range(k):
        w = E[weights, j]
        if w == 0:
            continue
        for i in range(d):
            D[target, i] += w * R[POS, j, i]
        if kinked:
            for i in range(d):
                D[target + 1, i] += w * R[NEG, j, i]
        if curved:
            for i in range(d):
                D[target + 2, i] += w * R[QUAD, j, i]


@_inlined
def _at(D, i, pos, neg, quad, kinked, curved):
    """Component i of argmin over the box of 1/2 |x - a|_m^2 + penalty(x)."""
    x = D[PULL, i] - pos
    if kinked:
        x = max(x, 0.0) + min(D[PULL, i] + neg, 0.0)
    x /= D[METRIC, i] + 2 * quad if curved else D[METRIC, i]
    return min(max(x, D[INNER_LOW, i]), D[INNER_HIGH, i])


@_inlined
def _evaluate(D, E, R, kinked, curved, size):
    """Point of the multipliers, and excess and tolerance of every row there."""
    k, d = R.shape[1], R.shape[2]
    _add_up(D, E, R, LAM, PP, kinked, curved)
    for i in range(d):
        D[X, i] = _at(D, i, D[PP, i], D[PN, i], D[PQ, i], kinked, curved)
    for j in range(k):
        E[EXCESS, j] = E[TOLERANCE, j] = 0.0
    for i in range(d):
        x = D[X, i]
        pull = 0.0
        for j in range(k):
            pull += E[LAM, j] * R[STEEP, j, i]
        # Multipliers far larger than the proposal are diverging: they must not loosen the tolerance.
        pull = ROUNDING * (abs(D[A, i]) + min(pull / D[METRIC, i], 64 * size))
        for j in range(k):
            slope = R[POS, j, i]
            if kinked and x < 0:
                slope = -R[NEG, j, i]
            term = slope * x
            if curved:
                term += R[QUAD, j, i] * x * x
                slope += 2 * R[QUAD, j, i] * x
            E[EXCESS, j] += term
            E[TOLERANCE, j] += RESIDUAL * abs(term) + pull * abs(slope)
    for j in range(k):
        E[EXCESS, j] -= E[BOUND, j]
        E[TOLERANCE, j] += RESIDUAL * abs(E[BOUND, j])


@_jit
def _newton_direction(D, E, R, H, kinked, curved):
    """Newton direction over the rows with a multiplier and the one broken most; False where there is none."""
    k, d = R.shape[1], R.shape[2]
    worst, most, unrest = -1, 0.0, 0.0
    for j in range(k):
        E[DIRECTION, j] = 0.0
        if E[LAM, j] > 0:
            unrest = max(unrest, abs(E[EXCESS, j]))
        elif E[EXCESS, j] > E[TOLERANCE, j] and E[EXCESS, j] > most:
            worst, most = j, E[EXCESS, j]
    # A new row waits until the active ones are met at least as well, or tiny steps between rows never end.
    fresh = worst >= 0 and most >= unrest
    count = 0
    for j in range(k):
        if E[LAM, j] > 0 or (fresh and j == worst):
            H[count, k] = j  # the row number, beside the matrix
            count += 1
    largest = 0.0
    for p in range(count):
        row = int(H[p, k])
        for q in range(p + 1):
            other, total = int(H[q, k]), 0.0
            for i in range(d):
                x = D[X, i]
                if x <= D[INNER_LOW, i] or x >= D[INNER_HIGH, i] or (kinked and x == 0):
                    continue
                g, h = R[POS, row, i], R[POS, other, i]
                if kinked and x < 0:
                    g, h = -R[NEG, row, i], -R[NEG, other, i]
                stiff = D[METRIC, i]
                if curved:
                    g += 2 * R[QUAD, row, i] * x
                    h += 2 * R[QUAD, other, i] * x
                    stiff += 2 * D[PQ, i]
                total += g * h / stiff
            H[p, q] = total
            largest = max(largest, abs(total))
    step_is_good = count > 0
    for p in range(count):  # Cholesky, the factor over the lower half
        H[p, p] += 1e-13 * largest + 1e-14
        for q in range(p + 1):
            total = H[p, q]
            for r in range(q):
                total -= H[p, r] * H[q, r]
            if p == q:
                if not total > 0:
                    step_is_good = False
                    total = 1.0
                H[p, p] = np.sqrt(total)
            else:
                H[p, q] = total / H[q, q]
    for p in range(count):
        total = E[EXCESS, int(H[p, k])]
        for q in range(p):
            total -= H[p, q] * H[q, k + 1]
        H[p, k + 1] = total / H[p, p]
    rise, longest = 0.0, 0.0
    for p in range(count - 1, -1, -1):
        total = H[p, k + 1]
        for q in range(p + 1, count):
            total -= H[q, p] * H[q, k + 1]
        step = total / H[p, p]
        H[p, k + 1] = step
        row = int(H[p, k])
        E[DIRECTION, row] = step
        rise += step * E[EXCESS, row]
        longest = max(longest, abs(step))
    # Where the Newton model is flat or points the wrong way, use only the row broken most.
    wild = not longest <= 1e9
    if fresh and not (step_is_good and not wild and E[DIRECTION, worst] > 0 and rise > 0):
        for j in range(k):
            E[DIRECTION, j] = 0.0
        E[DIRECTION, worst] = 1.0
        return True
    if wild:  # every component is held at a bound: the line search finds where one is released
        for j in range(k):
            E[DIRECTION, j] /= longest
    return step_is_good and longest < np.inf


@_inlined
def _line_search(D, E, R, longest, kinked, curved):
    """The step in (0, longest] at which the dual stops rising along the direction; bracketed Newton."""
    k, d = R.shape[1], R.shape[2]
    _add_up(D, E, R, DIRECTION, RP, kinked, curved)
    offset, enough = 0.0, 0.0
    for j in range(k):
        offset += E[DIRECTION, j] * E[BOUND, j]
        enough += 1e-14 * abs(E[DIRECTION, j] * E[BOUND, j])
    t = min(1.0 if k > 1 else 0.0, longest)
    low, high = 0.0, longest
    one_ellipsoid = curved and not kinked and k == 1 and offset > 0
    for _ in range(MAX_SEARCH):
        slope, curvature = -offset, 0.0
        for i in range(d):
            x = _at(
                D,
                i,
                D[PP, i] + t * D[RP, i],
                D[PN, i] + t * D[RN, i],
                D[PQ, i] + t * D[RQ, i],
                kinked,
                curved,
            )
            tangent = D[RP, i]
            if kinked and x < 0:
                tangent = -D[RN, i]
            term, stiff = tangent * x, D[METRIC, i]
            if curved:
                term += D[RQ, i] * x * x
                tangent += 2 * D[RQ, i] * x
                stiff += 2 * (D[PQ, i] + t * D[RQ, i])
            slope += term
            if x > D[INNER_LOW, i] and x < D[INNER_HIGH, i] and not (kinked and x == 0):
                curvature += tangent * tangent / stiff
        if slope > 0:
            low = t
        else:
            high = t
        gain = slope
        if one_ellipsoid:  # 1/sqrt(f) is nearly linear in t while f is not
            gain = 2 * (slope + offset) * (np.sqrt(max(slope + offset, 0.0) / offset) - 1)
        newton = t + gain / curvature if curvature > 0 else t
        bounded = high < np.inf
        if not bounded:
            newton = min(newton, 64.0 * (t + 1.0))
        if (
            abs(slope) <= enough
            or (slope > 0 and t >= longest)
            or (bounded and high - low <= 4e-16 * high)
            or (curvature > 0 and abs(newton - t) <= 2e-16 * t)
            or t > 1e30
        ):
            return t
        if curvature > 0 and low < newton < high:
            t = min(newton, longest)
        elif bounded:
            t = 0.5 * (low + high)
        else:
            t = min(8.0 * t + 1.0, longest)
    return t


@_jit
def _solve(D, E, R, H, kinked, curved):
    """Multipliers and point for the thresholds E[BOUND] and the proposal D[A]: MOVED, EMPTY or UNSURE."""
    k, d = R.shape[1], R.shape[2]
    size, farthest = 0.0, 0.0
    for i in range(d):
        D[PULL, i] = D[METRIC, i] * D[A, i]
        size = max(size, abs(D[A, i]))
        reach = max(abs(D[INNER_HIGH, i] - D[A, i]), abs(D[INNER_LOW, i] - D[A, i]))
        farthest += 0.5 * D[METRIC, i] * reach * reach
    for j in range(k):
        E[LAM, j] = 0.0
    settled = False
    for step in range(MAX_STEPS + 3 * k + 1):
        _evaluate(D, E, R, kinked, curved, size)
        met, close, penalty = True, True, 0.0
        for j in range(k):
            over = E[EXCESS, j]
            error = abs(over) if E[LAM, j] > 0 else over
            met = met and error <= E[TOLERANCE, j]
            penalty += E[LAM, j] * over
        if met:
            return MOVED
        if step:
            primal = 0.0
            for i in range(d):
                primal += 0.5 * D[METRIC, i] * (D[X, i] - D[A, i]) ** 2
            dual = primal + penalty
            # Weak duality: no point of the box is as far away as the set would have to be.
            if dual > (1 + 1e-9) * farthest:
                return EMPTY
            settled = -penalty <= 1e-10 * primal
            for j in range(k):
                total = 0.0
                for i in range(d):
                    total += R[STEEP, j, i]
                close = close and E[EXCESS, j] <= 1e-15 * total
            settled = settled and close
        if k > 1:
            if not _newton_direction(D, E, R, H, kinked, curved):
                return UNSURE
        else:
            E[DIRECTION, 0] = 1.0 if E[EXCESS, 0] > 0 else -1.0
        longest = np.inf
        for j in range(k):  # the first multiplier that would turn negative ends the step
            if E[DIRECTION, j] < 0:
                longest = min(longest, -E[LAM, j] / E[DIRECTION, j])
        t = _line_search(D, E, R, longest, kinked, curved)
        for j in range(k):
            if E[DIRECTION, j] < 0 and -E[LAM, j] / E[DIRECTION, j] <= t:
                E[LAM, j] = 0.0
            else:
                E[LAM, j] = max(E[LAM, j] + t * E[DIRECTION, j], 0.0)
    return MOVED if settled else UNSURE


# --- one proposal ---------------------------------------------------------------------------------------------


@_jit
def _imply_bounds(pos, neg, quad, bound, b, D):
    """Tighten D[LOW] and D[HIGH] by the rows whose terms are never negative.

    Where these must sum to zero, each is zero: such a row is a bound.
    """
    for j in range(bound.shape[1]):
        c = bound[b, j]
        grows = 0 <= c < np.inf
        for i in range(pos.shape[2]):
            if pos[b, j, i] < 0 or neg[b, j, i] < 0:
                grows = False
        if not grows:
            continue
        for i in range(pos.shape[2]):
            square = np.sqrt(c / quad[b, j, i]) if quad[b, j, i] > 0 else np.inf
            D[HIGH, i] = min(D[HIGH, i], square, c / pos[b, j, i] if pos[b, j, i] > 0 else np.inf)
            D[LOW, i] = max(D[LOW, i], -square, -c / neg[b, j, i] if neg[b, j, i] > 0 else -np.inf)
            if c == 0:
                if pos[b, j, i] > 0 or quad[b, j, i] > 0:
                    D[INNER_HIGH, i] = min(D[INNER_HIGH, i], 0.0)
                if neg[b, j, i] > 0 or quad[b, j, i] > 0:
                    D[INNER_LOW, i] = max(D[INNER_LOW, i], 0.0)


@_inlined
def _bring_near(D):
    """Move a proposal further away than FAR diameters of the bounds along the line to their centre."""
    far, span = 0.0, 0.0
    for i in range(D.shape[1]):
        far += D[METRIC, i] * (D[A, i] - 0.5 * (D[LOW, i] + D[HIGH, i])) ** 2
        span += D[METRIC, i] * (D[HIGH, i] - D[LOW, i]) ** 2
    if far > FAR**2 * span:  # not where the set is unbounded
        share = FAR * np.sqrt(span / far)
        for i in range(D.shape[1]):
            centre = 0.5 * (D[LOW, i] + D[HIGH, i])
            D[A, i] = centre + share * (D[A, i] - centre)
            D[X, i] = min(max(D[A, i], D[INNER_LOW, i]), D[INNER_HIGH, i])


@_inlined
def _prepare(a, low, high, metric, pos, neg, quad, bound, at, kinked, curved, short, D, E, R):
    """Fill D, E, R; False where the problem is not an ordinary one. at: numbers of proposal, box, metric, rows."""
    k, d = pos.shape[1], pos.shape[2]
    p0, box, m, b = at
    size = 0.0
    for i in range(d):
        bottom, top = low[box, i], high[box, i]
        if short:  # bounds rounded inwards to 32 bits
            lower, upper = np.float32(bottom), np.float32(top)
            if lower < bottom:
                lower = np.nextafter(lower, np.float32(np.inf))
            if upper > top:
                upper = np.nextafter(upper, np.float32(-np.inf))
            bottom, top = np.float64(lower), np.float64(upper)
        if not (bottom <= top and abs(a[p0, i]) < np.inf and metric[m, i] > 0):
            return False
        D[A, i], D[METRIC, i], D[INNER_LOW, i], D[INNER_HIGH, i] = a[p0, i], metric[m, i], bottom, top
        D[X, i] = min(max(a[p0, i], bottom), top)
        size = max(size, abs(a[p0, i]), abs(D[X, i]))
        D[LOW, i], D[HIGH, i] = low[box, i], high[box, i]
    if not (SMALLEST < size < LARGEST):
        return False
    if kinked or curved:
        _imply_bounds(pos, neg, quad, bound, b, D)
        for i in range(d):
            if D[INNER_LOW, i] > D[INNER_HIGH, i]:
                return False
            D[X, i] = min(max(a[p0, i], D[INNER_LOW, i]), D[INNER_HIGH, i])
    _bring_near(D)
    for j in range(k):
        steepest, grows, terms, level = 0.0, kinked or curved, 0.0, 0.0
        for i in range(d):
            p = pos[b, j, i]
            n = neg[b, j, i] if kinked else -p
            q = quad[b, j, i] if curved else 0.0
            x = D[X, i]
            slope = max(abs(p), abs(n))
            if q != 0:
                reach = min(abs(D[A, i]) + 1.0, max(abs(low[box, i]), abs(high[box, i])))
                slope += 2 * q * (reach if reach > 0 else 1.0)
            R[POS, j, i], R[NEG, j, i], R[QUAD, j, i], R[STEEP, j, i] = p, n, q, slope
            steepest = max(steepest, slope)
            if p < 0 or n < 0:
                grows = False
            terms += abs((p if x >= 0 else -n) * x + q * x * x)
            v = D[A, i]
            level += abs((p if v >= 0 else -n) * v + q * v * v)
        c = bound[b, j]
        if c == np.inf or (grows and c == 0):  # padding, or a bound by now
            E[SCALE, j], E[BOUND, j], E[SLACK, j] = 0.0, 1.0, 0.0
            for i in range(d):
                R[POS, j, i] = R[NEG, j, i] = R[QUAD, j, i] = R[STEEP, j, i] = 0.0
            continue
        if grows and 0 <= c <= 1e-14 * level:  # zero, up to rounding
            return False
        if not (abs(c) < np.inf and steepest < np.inf and terms <= LARGEST * steepest):
            return False
        if steepest < 2.0**-200 or (c != 0 and abs(c) < 2.0**-200):
            if steepest != 0:
                return False
            steepest = 1.0
        unit = HALF_EPS_32 if short else 4 * RESIDUAL
        E[SLACK, j] = unit * (2 * abs(c) if grows else terms + abs(c))
        scale = 1.0 / steepest
        E[SCALE, j] = scale
        for i in range(d):
            R[POS, j, i] *= scale
            R[NEG, j, i] *= scale
            R[QUAD, j, i] *= scale
            R[STEEP, j, i] *= scale
        E[BOUND, j] = (c - E[SLACK, j]) * scale
    return True


@_inlined
def _broken(pos, neg, quad, bound, b, kinked, curved, D, point, row):
    """How a point stands to bounds and rows: 0 inside, 1 outside, 2 not certain."""
    answer = 0
    for i in range(point.shape[1]):
        if not (D[INNER_LOW, i] <= point[row, i] <= D[INNER_HIGH, i]):
            return 1
    for j in range(bound.shape[1]):
        over = excess(pos, neg, quad, bound, b, j, kinked, curved, point, row)
        if over > 0:
            return 1
        if not over <= 0:
            answer = 2
    return answer


@_inlined
def _round(D, point, row, short):
    for i in range(point.shape[1]):
        point[row, i] = np.float64(np.float32(D[X, i])) if short else D[X, i]


@_inlined
def _cost(D, E):
    """By weak duality, how much of half the squared distance aiming inside has cost at most; and that distance."""
    cost, primal = 0.0, 0.0
    for j in range(E.shape[1]):
        cost += E[LAM, j] * E[SLACK, j] * E[SCALE, j]
    for i in range(D.shape[1]):
        primal += 0.5 * D[METRIC, i] * (D[X, i] - D[A, i]) ** 2
    return cost, primal


@_inlined
def nearest(
    a, low, high, metric, pos, neg, quad, bound, at, kinked, curved, short, D, E, R, H, point, row, proof
):
    """The answer for proposal at[0], written into point[row]; proof[row] are multipliers where it is EMPTY."""
    k, d = pos.shape[1], pos.shape[2]
    p, box, b = at[0], at[1], at[3]
    inside = True
    for i in range(d):
        point[row, i] = a[p, i]
        if not low[box, i] <= a[p, i] <= high[box, i]:
            inside = False
    if inside:
        unknown = False
        for j in range(k):
            over = excess(pos, neg, quad, bound, b, j, kinked, curved, point, row)
            if over > 0:
                inside = False
                break
            if not over <= 0:
                unknown = True
        if inside:
            return UNSURE if unknown else INSIDE
    if not _prepare(a, low, high, metric, pos, neg, quad, bound, at, kinked, curved, short, D, E, R):
        return UNSURE
    if k == 0:
        _round(D, point, row, short)
        return MOVED
    answer = _solve(D, E, R, H, kinked, curved)
    if answer == MOVED:
        _round(D, point, row, short)
        cost, primal = _cost(D, E)
        # Where aiming inside costs much, because rows are nearly parallel or the way is short: aim at the boundary.
        if cost > 1e-3 * primal:
            for j in range(k):
                if E[SCALE, j] > 0:
                    E[BOUND, j] = bound[b, j] * E[SCALE, j]
            if _solve(D, E, R, H, kinked, curved) == MOVED:
                _round(D, point, row, short)
    else:  # a thin set may be empty when shrunk
        for j in range(k):
            if E[SCALE, j] > 0:
                E[BOUND, j] = bound[b, j] * E[SCALE, j]
        answer = _solve(D, E, R, H, kinked, curved)
        if answer == EMPTY:
            for j in range(k):
                proof[row, j] = E[LAM, j] * E[SCALE, j]
            return EMPTY
        if answer == UNSURE:
            return UNSURE
        _round(D, point, row, short)
    # Where rounding still breaks a row, project the found point once more, and then a little further inside.
    unit = HALF_EPS_32 if short else 4 * RESIDUAL
    for attempt in range(5):
        state = _broken(pos, neg, quad, bound, b, kinked, curved, D, point, row)
        if state == 0:
            return MOVED
        if state == 2 or attempt == 4:
            return UNSURE
        further = 4.0 ** (attempt - 1) * unit if attempt else 0.0
        for i in range(d):
            D[A, i] = point[row, i]
        for j in range(k):
            if E[SCALE, j] == 0:
                continue
            value, size = -bound[b, j], abs(bound[b, j])
            for i in range(d):
                x = point[row, i]
                term = (pos[b, j, i] if x >= 0 else -neg[b, j, i]) * x + quad[b, j, i] * x * x
                value += term
                size += abs(term)
            E[BOUND, j] = (bound[b, j] - (further * size if value > 0 else 0.0)) * E[SCALE, j]
        if _solve(D, E, R, H, kinked, curved) == MOVED:
            _round(D, point, row, short)
    return UNSURE


@_jit
def nearest_rows(a, low, high, metric, pos, neg, quad, bound, kinked, curved, short, point, status, proof):
    """Every row of a batch: a [B, d]; the others have B rows, or one for all. Fills point, status, proof."""
    k, d = pos.shape[1], pos.shape[2]
    D, E, R, H = np.empty((14, d)), np.empty((8, k)), np.empty((4, k, d)), np.empty((k, k + 2))
    box, weights, rows = len(low) > 1, len(metric) > 1, len(bound) > 1
    for b in range(len(a)):
        at = (b, b if box else 0, b if weights else 0, b if rows else 0)
        status[b] = nearest(
            a, low, high, metric, pos, neg, quad, bound, at, kinked, curved, short, D, E, R, H, point, b, proof
        )  # fmt: skip


# --- one verdict ----------------------------------------------------------------------------------------------


@_jit
def _margins(a, low, high, pos, neg, quad, bound, ends, kinked, curved, margins, row):
    """Margins of every rule at a[row], with bounds low, high [n, d] and rows up to ends[n]; False where in doubt."""
    first = 0
    for r in range(len(ends)):
        least = np.inf
        for i in range(a.shape[1]):
            least = min(least, a[row, i] - low[r, i], high[r, i] - a[row, i])
        for j in range(first, ends[r]):
            over = excess(pos, neg, quad, bound, 0, j, kinked, curved, a, row)
            if over != over:
                return False
            least = min(least, -over)
        first = ends[r]
        margins[row, r] = least
    return True


@_jit
def judge(a, low, high, metric, pos, neg, quad, bound, ends, kinked, curved, short, points, margins):
    """Judge one proposal a [1, d] under n rules, the first of which is the action space: (answer, distance).

    low, high [n, d]; metric [1, d]; pos, neg, quad [1, k, d]; the rows of rule r end at ends[r]. Filled in:
    points [2, d], the proposal and the action to execute; margins [2, n] of each rule there.
    """
    k, d = pos.shape[1], pos.shape[2]
    D, E, R, H = np.empty((14, d)), np.empty((8, k)), np.empty((4, k, d)), np.empty((k, k + 2))
    inner = np.empty((2, 1, d))
    for i in range(d):
        points[0, i] = a[0, i]
        if not abs(a[0, i]) < LARGEST:
            return UNSURE, 0.0
        bottom, top = low[0, i], high[0, i]
        for r in range(1, len(low)):
            bottom, top = max(bottom, low[r, i]), min(top, high[r, i])
        inner[0, 0, i], inner[1, 0, i] = bottom, top
    if not _margins(points, low, high, pos, neg, quad, bound, ends, kinked, curved, margins, 0):
        return UNSURE, 0.0
    answer = nearest(
        a, inner[0], inner[1], metric, pos, neg, quad, bound, (0, 0, 0, 0), kinked, curved, short, D, E, R, H,
        points, 1, E,
    )  # fmt: skip
    if answer > MOVED or not _margins(
        points, low, high, pos, neg, quad, bound, ends, kinked, curved, margins, 1
    ):
        return UNSURE, 0.0
    total = 0.0
    for i in range(d):
        total += metric[0, i] * (points[1, i] - a[0, i]) ** 2
    for r in range(len(ends)):  # the last word is the rules' own inequality
        if not margins[1, r] >= 0:
            return UNSURE, 0.0
    return answer, np.sqrt(total)


def warm_up() -> None:
    """Compile everything, or load it from the cache, so that no verdict waits for it."""
    one, two, row = np.ones((1, 1)), np.ones((2, 1)), np.ones((1, 1, 1))
    for short in (False, True):
        arrays = (2 * one, -one, one, one, row, -row, 0 * row, 0.5 * one)
        nearest_rows(*arrays, False, False, short, np.empty((1, 1)), np.empty(1, np.int8), np.empty((1, 1)))
        arrays = (2 * one, -two, two, one, row, -row, 0 * row, 0.5 * one)
        judge(*arrays, np.array([0, 1]), False, False, short, np.empty((2, 1)), np.empty((2, 2)))
