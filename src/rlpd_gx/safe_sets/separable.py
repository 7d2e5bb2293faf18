"""Every convex safe set here is a box and a few separable rows; this file defines that common form.

A row is a constraint f(x) <= c with

    f(x) = sum_i  pos_i * max(x_i, 0) + neg_i * max(-x_i, 0) + quad_i * x_i^2 ,
    pos_i + neg_i >= 0,  quad_i >= 0   (so each term is convex).

A half-space has neg = -pos, a weighted L1 norm pos = neg = |w|, a positive-part sum one of them, an ellipsoid
quad = w. Every intersection of such sets is again a box and rows, so one solver projects onto all of them.
"""

from dataclasses import dataclass
from typing import Self

from rlpd_gx.safe_sets.backend import Array, namespace, row_sum
from rlpd_gx.safe_sets.base import Index


@dataclass(frozen=True)
class Rows:
    """`pos`, `neg`, `quad`: [..., K, d]; `bound`: [..., K].

    Where there are no kinks (neg = -pos) or no curvature (quad = 0), those terms are left out of the arithmetic.
    """

    pos: Array
    neg: Array
    quad: Array
    bound: Array
    kinked: bool = True
    curved: bool = True

    def terms(self, x: Array) -> Array:
        """The summands of every row at x [..., d] -> [..., K, d]."""
        xp = namespace(self.pos)
        x = x[..., None, :]
        terms = self.pos * (xp.clip(x, 0.0, None) if self.kinked else x)
        if self.kinked:
            terms = terms - self.neg * xp.clip(x, None, 0.0)
        # In this order: the square of a small number would vanish, though its weight may be large.
        return terms + self.quad * x * x if self.curved else terms

    def excess(self, x: Array) -> Array:
        """f(x) - c [..., K]: positive where x [..., d] breaks the row."""
        return row_sum(self.terms(x)) - self.bound

    def magnitude(self, x: Array) -> Array:
        """How large the numbers compared in each row are [..., K]: what rounding is relative to."""
        xp = namespace(self.pos)
        return row_sum(xp.abs(self.terms(x))) + xp.abs(self.bound)

    def tightened(self, share: float) -> Self:
        """Rows that hold where these hold with share * (sum |terms| + |c|) to spare; again a sum of convex terms."""
        xp = namespace(self.pos)
        pos, neg = (v + share * xp.abs(v) for v in (self.pos, self.neg))
        bound = self.bound - share * xp.where(xp.isfinite(self.bound), xp.abs(self.bound), 0.0)
        return type(self)(pos, neg, (1 + share) * self.quad, bound, True, self.curved)

    def lifted(self) -> Self:
        """The same constraints; rows with numbers near the smallest floats are multiplied by a power of two."""
        xp = namespace(self.pos)
        size = xp.abs(self.pos)
        if self.kinked:
            size = xp.maximum(size, xp.abs(self.neg))
        if self.curved:
            size = xp.maximum(size, self.quad)
        steepest = xp.max(size, axis=-1) if size.shape[-1] else xp.zeros_like(self.bound)
        size = xp.abs(self.bound)
        low = (steepest < 2.0**-200) | ((size > 0) & (size < 2.0**-200) & (steepest < 2.0**300))
        faint = (steepest > 0) & low & ((size < 2.0**400) | xp.isinf(size))
        if not bool(xp.any(faint)):
            return self
        factor = xp.where(faint, 2.0**600, 1.0)
        wide = factor[..., None]
        return self.with_arrays(self.pos * wide, self.neg * wide, self.quad * wide, self.bound * factor)

    def __getitem__(self, index: Index) -> Self:
        values = (v[index] for v in (self.pos, self.neg, self.quad, self.bound))
        return type(self)(*values, kinked=self.kinked, curved=self.curved)  # type: ignore[misc]

    def with_arrays(self, pos: Array, neg: Array, quad: Array, bound: Array) -> Self:
        """Rows of the same kind with other numbers."""
        return type(self)(pos, neg, quad, bound, self.kinked, self.curved)


def minimum_over_box(rows: Rows, low: Array, high: Array) -> Array:
    """The least value of each row's f over the box [..., K]; low and high are [..., d]."""
    xp = namespace(rows.pos)
    low, high = low[..., None, :], high[..., None, :]
    if not rows.curved and not rows.kinked:
        ends = xp.where(rows.pos > 0, low, high)
        return row_sum(xp.where(rows.pos != 0, rows.pos, 0.0) * xp.where(rows.pos != 0, ends, 0.0))
    curved = rows.quad > 0
    quad = xp.where(curved, rows.quad, 1.0)
    # Where the slope at zero points outwards, the minimum is beyond it: at the vertex, or at the far bound.
    rightwards = xp.where(curved, -rows.pos / (2 * quad), xp.where(rows.pos < 0, xp.inf, 0.0))
    leftwards = xp.where(curved, rows.neg / (2 * quad), xp.where(rows.neg < 0, -xp.inf, 0.0))
    vertex = xp.where(rows.pos < 0, rightwards, xp.where(rows.neg < 0, leftwards, 0.0))
    x = xp.minimum(xp.maximum(vertex, low), high)
    finite = xp.isfinite(x)
    x = xp.where(finite, x, 0.0)
    terms = rows.pos * xp.clip(x, 0.0, None) - rows.neg * xp.clip(x, None, 0.0) + rows.quad * x * x
    return row_sum(xp.where(finite, terms, -xp.inf))
