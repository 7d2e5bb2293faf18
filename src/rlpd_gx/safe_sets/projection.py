"""Nearest points that satisfy bounds and rows after the cast to the dtype of the action, not merely up to rounding.

Numpy batches go through the compiled kernel first, where numba is installed. What it leaves open, and everything
else, is solved by the reference: the batched solver, and one by one where that does not converge.
"""

from typing import NamedTuple

import numpy as np

from rlpd_gx.safe_sets import compiled, exact
from rlpd_gx.safe_sets.backend import (
    Array,
    as_float,
    index_range,
    is_float32,
    namespace,
    row_any,
    row_sum,
    to_numpy,
)
from rlpd_gx.safe_sets.base import Index, Nearest
from rlpd_gx.safe_sets.last_resort import Problem, Rounding, pull_inside
from rlpd_gx.safe_sets.last_resort import nearest as last_resort
from rlpd_gx.safe_sets.separable import Rows
from rlpd_gx.safe_sets.solver import RESIDUAL, Solution, bring_near, nearest_point

TOLERANCE = 1e-9  # of a row, relative to the numbers compared
TOLERANCE_FLOAT32 = 1e-6  # the same for 32-bit actions
THIN = 1e-11  # rows of a set too thin for its dtype are relaxed by this much, relative to their numbers
ATOM = 1e-15  # absolute resolution of an action component


class Problems(NamedTuple):
    """Sets in common form: low, high, weight [B, d] and rows [B, K, d], each with one member where all are the same."""

    low: Array
    high: Array
    rows: Rows
    weight: Array

    def at(self, index: Array) -> "Problems":
        """Some members, each spelled out."""
        xp, rows = namespace(index), self.rows

        def members(v: Array) -> Array:
            if len(v) > 1:
                return v[index]
            return xp.broadcast_to(v, (len(index), *v.shape[1:]))

        arrays = (members(v) for v in (rows.pos, rows.neg, rows.quad, rows.bound))
        return Problems(
            members(self.low),
            members(self.high),
            rows.with_arrays(*arrays),
            members(self.weight),
        )


def nearest_after_cast(a: Array, sets: Problems, thorough: bool = True) -> Nearest:
    """The nearest points to a [B, d]; without `thorough`, the method of last resort is left out."""
    answers = compiled.nearest(a, *sets) if namespace(a) is np else None
    if answers is None:
        return _reference(a, sets.at(index_range(len(a), a)), thorough)
    point, status, proof = answers
    point = point.astype(a.dtype, copy=False)
    found, empty = status <= compiled.MOVED, np.zeros(len(a), dtype=bool)
    if not found.all():
        (lost,) = np.nonzero(status == compiled.EMPTY)
        if len(lost):
            some = sets.at(lost)
            empty[lost] = exact.proven_empty(some.rows, proof[lost], some.low, some.high)
        (left,) = np.nonzero(~(found | empty))
        if len(left):
            point[left], found[left], empty[left] = _reference(a[left], sets.at(left), thorough)
    return Nearest(point, found, empty)


def within_tolerance(a: Array, low: Array, high: Array, rows: Rows) -> Array:
    """Whether actions [..., d] are in box and rows up to the stated tolerance."""
    tolerance = TOLERANCE_FLOAT32 if is_float32(a) else TOLERANCE
    xp, a = namespace(a), as_float(a)
    slack = tolerance * xp.abs(a)
    inside = ~row_any(~((a + slack >= low) & (a - slack <= high)))
    if rows.bound.shape[-1]:
        terms = rows.terms(a)
        excess, size = row_sum(terms) - rows.bound, row_sum(xp.abs(terms)) + xp.abs(rows.bound)
        finest = ATOM * row_sum(xp.maximum(xp.abs(rows.pos), xp.abs(rows.neg)))
        close = xp.isfinite(size) & (excess <= tolerance * size + finest)
        inside = inside & xp.all(close | (excess <= 0), axis=-1)
    return inside


def _reference(a: Array, sets: Problems, thorough: bool) -> Nearest:
    """The answers by the batched solver."""
    low, high, rows, weight = sets
    xp, proposed = namespace(a), as_float(a)
    within = (proposed >= low) & (proposed <= high)  # NaN is not
    inside = ~row_any(~within) & ~row_any(exact.excess(rows, proposed) > 0)
    (todo,) = xp.nonzero(~inside)
    if len(todo) == len(a):
        return _moved(a, low, high, rows, weight, thorough)
    point, found, empty = xp.asarray(a, copy=True), xp.asarray(inside, copy=True), xp.zeros_like(inside)
    if len(todo):
        point[todo], found[todo], empty[todo] = _moved(a[todo], *sets.at(todo), thorough)
    return Nearest(point, found, empty)


def _moved(a: Array, low: Array, high: Array, rows: Rows, weight: Array, thorough: bool) -> Nearest:
    """The same for proposals that all have to move."""
    xp, short = namespace(a), is_float32(a)
    inner_low, inner_high = _representable(low, high, a) if short else (low, high)
    unit = float(xp.finfo(a.dtype).eps) / 2 if short else 4 * RESIDUAL
    near = bring_near(as_float(a), low, high, rows, weight)

    def solve(start: Array, index: Index, slack: Array) -> Solution:
        part = rows if index is ... else rows[index]
        aim = part.with_arrays(part.pos, part.neg, part.quad, part.bound - slack)
        return nearest_point(start, inner_low[index], inner_high[index], aim, weight[index])

    # Aim inside by a little more than the solver's residual and the cast's rounding.
    if rows.kinked or rows.curved:  # a row of non-negative terms holds no numbers above its threshold
        grows = ~row_any((rows.pos < 0) | (rows.neg < 0))
    else:
        grows = xp.zeros_like(rows.bound, dtype=xp.bool)
    size = xp.abs(rows.bound) * 2
    if not bool(xp.all(grows)):
        size = xp.where(grows, size, rows.magnitude(xp.minimum(xp.maximum(near, inner_low), inner_high)))
    slack = unit * xp.where(xp.isfinite(size), size, 0.0)
    point, found, proof = solve(near, ..., slack)
    empty = xp.zeros_like(found)
    # By weak duality, aiming inside has cost at most sum(multiplier * slack) of half the squared distance. That is much
    # where rows are nearly parallel: then aim at the boundary itself.
    cost = xp.sum(proof * slack, axis=-1)
    (steep,) = xp.nonzero(found & (cost > 1e-3 * 0.5 * xp.sum(weight * (point - near) ** 2, axis=-1)))
    if len(steep):
        plain = solve(near[steep], steep, xp.zeros_like(slack[steep]))
        point[steep] = xp.where(plain.found[:, None], plain.point, point[steep])
    (thin,) = xp.nonzero(~found)
    if len(thin):  # a thin set is empty when shrunk: use the set itself, up to the stated tolerance
        point[thin], found[thin], proof[thin] = solve(near[thin], thin, xp.zeros_like(slack[thin]))
        lost = thin[~found[thin]]
        empty[lost] = exact.proven_empty(rows[lost], proof[lost], low[lost], high[lost])
        lost = lost[~empty[lost] & ~row_any(xp.isnan(near[lost]))]  # nothing is nearest to NaN
        for i in lost.tolist() if thorough else ():
            _one_by_one(i, near, (low, high), (inner_low, inner_high), rows, weight, (point, found, empty))
    point = xp.astype(point, a.dtype)

    # Where rounding still breaks a row, project the found point once more (from so near, rounding is far smaller), and
    # then a little further inside.
    def broken(index: Array) -> Array:
        x = as_float(point[index])
        outside = row_any(~((x >= inner_low[index]) & (x <= inner_high[index])))
        return index[outside | xp.any(exact.excess(rows[index], x) > 0, axis=-1)]

    todo = broken(xp.nonzero(found)[0])
    for attempt in range(4):
        if not len(todo):
            break
        start, part = as_float(point[todo]), rows[todo]
        further = 4.0 ** (attempt - 1) * unit if attempt else 0.0
        slack = xp.where(part.excess(start) > 0, further * part.magnitude(start), 0.0)
        again = solve(start, todo, slack)
        point[todo] = xp.where(again.found[:, None], xp.astype(again.point, a.dtype), point[todo])
        todo = broken(todo)
    for i in todo.tolist() if thorough else ():
        problem, rounding = _problem(i, inner_low, inner_high, rows, weight), Rounding.of(a)
        pulled = pull_inside(to_numpy(as_float(point[i])), problem, rounding)
        if pulled is None:
            pulled = _where_there_is_room(to_numpy(near[i]), problem, rounding)
        if pulled is not None:
            point[i] = xp.astype(as_float(pulled, like=a), a.dtype)
    # The last word is the definition: a point that does not pass is not an answer.
    found[todo] = within_tolerance(point[todo], low[todo], high[todo], rows[todo])
    return Nearest(point, found, empty)


def _one_by_one(
    i: int,
    near: Array,
    bounds: tuple[Array, Array],
    inner: tuple[Array, Array],
    rows: Rows,
    weight: Array,
    answer: tuple[Array, Array, Array],
) -> None:
    """Problem i by the method of last resort, within representable bounds if possible; fills in the answer."""
    point, found, empty = answer
    for low, high in (inner, bounds):
        best, proof = last_resort(to_numpy(near[i]), _problem(i, low, high, rows, weight))
        if best is not None:
            point[i], found[i] = as_float(best, like=near), True
            return
    one = rows[i : i + 1]
    low, high = (v[i : i + 1] for v in bounds)
    empty[i] = exact.proven_empty(one, as_float(proof[None], like=near), low, high)[0]
    if not empty[i]:  # thinner than rounding, or empty by less than that: any point within the tolerance
        problem = _problem(i, *bounds, rows, weight)
        start = problem.clip(to_numpy(near[i]))
        relaxed = problem.rows.bound + THIN * problem.rows.magnitude(start)
        arrays = (problem.rows.pos, problem.rows.neg, problem.rows.quad, relaxed)
        best, _ = last_resort(to_numpy(near[i]), problem._replace(rows=problem.rows.with_arrays(*arrays)))
        if best is not None:
            point[i], found[i] = as_float(best, like=near), True


def _where_there_is_room(a: np.ndarray, problem: Problem, rounding: Rounding) -> np.ndarray | None:
    """The point nearest to a [d] among those that rounding does not push out: near the first one, there may be none."""
    if not len(problem.rows.bound):
        return None
    for share in (4 * rounding.half_eps, 8 * rounding.half_eps):
        best, _ = last_resort(a, problem._replace(rows=problem.rows.tightened(share)))
        pulled = None if best is None else pull_inside(best, problem, rounding)
        if pulled is not None:
            return pulled
    return None


def _problem(i: int, low: Array, high: Array, rows: Rows, weight: Array) -> Problem:
    arrays = (to_numpy(v[i]) for v in (rows.pos, rows.neg, rows.quad, rows.bound))
    return Problem(to_numpy(low[i]), to_numpy(high[i]), rows.with_arrays(*arrays), to_numpy(weight[i]))


def _representable(low: Array, high: Array, a: Array) -> tuple[Array, Array]:
    """Bounds rounded inwards to a's dtype; unchanged where nothing representable is between them."""
    xp = namespace(a)
    lower, upper = xp.astype(low, a.dtype), xp.astype(high, a.dtype)
    infinity = xp.full_like(lower, xp.inf)
    lower = xp.where(as_float(lower) < low, xp.nextafter(lower, infinity), lower)
    upper = xp.where(as_float(upper) > high, xp.nextafter(upper, -infinity), upper)
    lower, upper = as_float(lower), as_float(upper)
    fits = lower <= upper
    return xp.where(fits, lower, low), xp.where(fits, upper, high)
