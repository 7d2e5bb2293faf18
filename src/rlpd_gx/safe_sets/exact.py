"""Exact answers to two questions: does an action break a row, and is a set empty?

Floating point with a rigorous error bound decides where it can. The rest is decided by error-free sums
(Ogita, Rump and Oishi 2005) for all doubtful rows at once, and the last cases by fractions.
"""

import sys
from fractions import Fraction

import numpy as np

from rlpd_gx.safe_sets.backend import Array, as_float, namespace, row_sum, to_numpy
from rlpd_gx.safe_sets.separable import Rows, minimum_over_box

UNIT = 2.0**-53  # largest relative error of one operation
UNDERFLOW = 1e-300  # more than all underflows of one row together
SPLITTER = 2.0**27 + 1
# factors within it multiply without overflow, and their errors without underflow
RANGE = (2.0**-300, 2.0**300)
LEAST = 5e-324


def excess(rows: Rows, x: Array) -> Array:
    """f(x) - c [..., K], like `rows.excess`, but the sign is the sign in exact arithmetic."""
    xp = namespace(x)
    terms = rows.terms(x)
    value = row_sum(terms) - rows.bound
    size = row_sum(xp.abs(terms)) + xp.abs(rows.bound)
    # At most five roundings in a term, d in the sum, one for the bound; an underflow of quad * x is multiplied by x.
    error = (x.shape[-1] + 8) * UNIT * size + UNDERFLOW
    if rows.curved:
        error = error + UNDERFLOW * xp.max(xp.abs(x), axis=-1)[..., None]
    doubtful = ~(xp.abs(value) > error) & xp.isfinite(rows.bound)
    if not bool(xp.any(doubtful)):
        return value
    where = xp.nonzero(doubtful)
    shape = (*doubtful.shape, x.shape[-1])
    x = xp.broadcast_to(x[..., None, :], shape)
    picked = (to_numpy(xp.broadcast_to(v, shape)[where]) for v in (rows.pos, rows.neg, rows.quad, x))
    bound = to_numpy(xp.broadcast_to(rows.bound, doubtful.shape)[where])
    value[where] = as_float(_exact_excess(bound, *picked), like=value)
    return value


def _exact_excess(
    bound: np.ndarray, pos: np.ndarray, neg: np.ndarray, quad: np.ndarray, x: np.ndarray
) -> np.ndarray:
    """One row each: coefficients and x [n, d], bound [n] -> [n], with the right sign."""
    slope = np.where(x >= 0, pos, -neg)
    factors = np.abs(np.concatenate([slope, quad, x, bound[:, None]], axis=-1))
    plain = ((factors == 0) | ((factors >= RANGE[0]) & (factors <= RANGE[1]))).all(axis=-1)
    value = np.zeros(len(x))
    parts = [*_two_product(slope[plain], x[plain])]
    if quad.any():
        for half in _two_product(x[plain], x[plain]):
            parts += _two_product(quad[plain], half)
    summands = np.concatenate([*(p.T for p in parts), -bound[None, plain]])  # [m, n], their sum is the excess
    for _ in range(3):
        for j in range(1, len(summands)):
            summands[j], summands[j - 1] = _two_sum(summands[j], summands[j - 1])
    rest = np.abs(summands[:-1]).sum(axis=0)
    value[plain] = summands[-1] + summands[:-1].sum(axis=0)
    sure = plain.copy()
    sure[plain] = (rest == 0) | (np.abs(summands[-1]) > 2 * rest)
    for i in np.flatnonzero(~sure):
        numbers = np.concatenate([slope[i], quad[i], x[i]])
        value[i] = (
            _rounded(_fraction(slope[i], quad[i], x[i], bound[i])) if np.isfinite(numbers).all() else np.nan
        )
    return value


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    product = a * b
    (high_a, low_a), (high_b, low_b) = _halves(a), _halves(b)
    return product, low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)


def _halves(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    large = SPLITTER * a
    high = large - (large - a)
    return high, a - high


def _fraction(slope: np.ndarray, quad: np.ndarray, x: np.ndarray, bound: float) -> Fraction:
    total = -Fraction(float(bound))
    for g, q, v in zip(slope.tolist(), quad.tolist(), x.tolist(), strict=True):
        total += (Fraction(g) + Fraction(q) * Fraction(v)) * Fraction(v)
    return total


def _rounded(value: Fraction) -> float:
    """The nearest float that is zero only if the value is."""
    try:
        near = float(value)
    except OverflowError:
        near = sys.float_info.max if value > 0 else -sys.float_info.max
    return near if near or not value else (LEAST if value > 0 else -LEAST)


def proven_empty(rows: Rows, weights: Array, low: Array, high: Array) -> Array:
    """Whether multipliers [B, K] >= 0 prove that box and rows [B, K, d] have no point in common [B].

    They do if sum_k weights_k (f_k(x) - c_k) is positive everywhere in the box (Farkas).
    """
    xp = namespace(low)
    weights = xp.where(xp.isfinite(weights) & (weights > 0) & xp.isfinite(rows.bound), weights, 0.0)
    used = xp.where(weights > 0, rows.bound, 0.0)
    w = weights[..., None]
    arrays = (xp.sum(w * v, axis=-2)[:, None, :] for v in (rows.pos, rows.neg, rows.quad))
    bound = xp.sum(weights * used, axis=-1)[:, None]
    combined = rows.with_arrays(*arrays, bound)  # type: ignore[call-arg]
    gap = (minimum_over_box(combined, low, high) - bound)[:, 0]
    reach = xp.maximum(xp.abs(low), xp.abs(high))[:, None, :]
    steep = w * xp.maximum(xp.abs(rows.pos), xp.abs(rows.neg))
    largest = xp.where(steep > 0, steep * reach, 0.0) + xp.where(
        w * rows.quad > 0, w * rows.quad * reach**2, 0.0
    )
    size = xp.sum(xp.sum(largest, axis=-1) + weights * xp.abs(used), axis=-1)
    k, d = rows.pos.shape[-2:]
    # an underflow is multiplied by it at most twice
    furthest = xp.clip(xp.max(reach[:, 0, :], axis=-1), 1.0, None)
    error = (2 * k + 2 * d + 16) * UNIT * size + UNDERFLOW * furthest * furthest
    proven = gap > error
    doubtful = ~proven & ~(gap < -error) & xp.any(weights > 0, axis=-1)
    for i in xp.nonzero(doubtful)[0].tolist():
        one = (to_numpy(v[i]) for v in (rows.pos, rows.neg, rows.quad, used, weights, low, high))
        proven[i] = _least(*one) > 0
    return proven | xp.any(rows.bound == -xp.inf, axis=-1) | xp.any(low > high, axis=-1)


def _least(
    pos: np.ndarray,
    neg: np.ndarray,
    quad: np.ndarray,
    bound: np.ndarray,
    weights: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
) -> Fraction:
    """The least value of sum_k weights_k (f_k - c_k) over the box; -1 where it has none."""
    chosen = [(Fraction(float(w)), k) for k, w in enumerate(weights) if w > 0]
    if not all(np.isfinite(v[k]).all() for v in (pos, neg, quad) for _, k in chosen):
        return Fraction(-1)
    total = -sum((w * Fraction(float(bound[k])) for w, k in chosen), Fraction(0))
    for i in range(len(low)):
        p, n, q = (
            sum((w * Fraction(float(v[k, i])) for w, k in chosen), Fraction(0)) for v in (pos, neg, quad)
        )
        x: Fraction | None = Fraction(0)
        if p < 0 or n < 0:  # None: without a vertex the minimum is at the bound it falls towards
            x = (-p if p < 0 else n) / (2 * q) if q else None
        bottom, top = (Fraction(float(v)) if np.isfinite(v) else None for v in (low[i], high[i]))
        if x is None:
            x = top if p < 0 else bottom
            if x is None:
                return Fraction(-1)
        x = x if bottom is None else max(x, bottom)
        x = x if top is None else min(x, top)
        total += (p if x > 0 else -n) * x + q * x * x
    return total
