"""Every convex safe set here is a box and a few separable rows; this file is that common form.

A row is a constraint f(x) <= c with

    f(x) = sum_i  pos_i * max(x_i, 0) + neg_i * max(-x_i, 0) + quad_i * x_i^2 ,
    pos_i + neg_i >= 0,  quad_i >= 0   (so each term is convex).

A half-space has neg = -pos, a weighted L1 norm pos = neg = |w|, a positive-part sum one of them, an ellipsoid
quad = w. Any intersection of such sets is again a box and rows, so one solver projects onto all of them.
"""

from dataclasses import dataclass
from typing import Any, Self

from rlpd_gx.safe_sets.backend import Array, namespace


@dataclass(frozen=True)
class Rows:
    """`pos`, `neg`, `quad`: [..., K, d]; `bound`: [..., K]."""

    pos: Array
    neg: Array
    quad: Array
    bound: Array

    def terms(self, x: Array) -> Array:
        """The summands of every row at x [..., d] -> [..., K, d]."""
        xp = namespace(self.pos)
        x = x[..., None, :]
        return self.pos * xp.clip(x, 0.0, None) - self.neg * xp.clip(x, None, 0.0) + self.quad * x * x

    def excess(self, x: Array) -> Array:
        """f(x) - c [..., K]: positive where x [..., d] breaks the row."""
        return namespace(self.pos).sum(self.terms(x), axis=-1) - self.bound

    def magnitude(self, x: Array) -> Array:
        """How large the numbers compared in each row are [..., K]: what rounding is relative to."""
        xp = namespace(self.pos)
        return xp.sum(xp.abs(self.terms(x)), axis=-1) + xp.abs(self.bound)

    def slopes(self, x: Array) -> Array:
        """df/dx [..., K, d], from the right at a kink."""
        x = x[..., None, :]
        return namespace(self.pos).where(x >= 0, self.pos, -self.neg) + 2 * self.quad * x

    def __getitem__(self, index: Any) -> Self:
        return type(self)(self.pos[index], self.neg[index], self.quad[index], self.bound[index])


def minimum_over_box(rows: Rows, low: Array, high: Array) -> Array:
    """The least value of each row's f over the box [..., K]; low and high are [..., d]."""
    xp = namespace(rows.pos)
    low, high = low[..., None, :], high[..., None, :]
    curved = rows.quad > 0
    quad = xp.where(curved, rows.quad, 1.0)
    # Where the slope at zero points outwards, the minimum lies beyond: at the vertex, or at the far bound.
    rightwards = xp.where(curved, -rows.pos / (2 * quad), xp.where(rows.pos < 0, xp.inf, 0.0))
    leftwards = xp.where(curved, rows.neg / (2 * quad), xp.where(rows.neg < 0, -xp.inf, 0.0))
    vertex = xp.where(rows.pos < 0, rightwards, xp.where(rows.neg < 0, leftwards, 0.0))
    x = xp.minimum(xp.maximum(vertex, low), high)
    finite = xp.isfinite(x)
    x = xp.where(finite, x, 0.0)
    terms = rows.pos * xp.clip(x, 0.0, None) - rows.neg * xp.clip(x, None, 0.0) + rows.quad * x * x
    return xp.sum(xp.where(finite, terms, -xp.inf), axis=-1)
