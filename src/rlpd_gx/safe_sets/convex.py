"""Convex safe sets for Box action spaces: boxes and separable rows, all projected onto by one solver."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.safe_sets import exact
from rlpd_gx.safe_sets.backend import Array, as_float, is_float32, namespace, row_any, row_sum, to_numpy
from rlpd_gx.safe_sets.base import Index, Nearest, SafeSet, Spec
from rlpd_gx.safe_sets.last_resort import Problem, Rounding, pull_inside
from rlpd_gx.safe_sets.last_resort import nearest as last_resort
from rlpd_gx.safe_sets.separable import Rows
from rlpd_gx.safe_sets.solver import RESIDUAL, Solution, bring_near, nearest_point

TOLERANCE = 1e-9  # `contains`, relative to the numbers compared
TOLERANCE_FLOAT32 = 1e-6  # the same for 32-bit actions
THIN = 1e-11  # rows of a set too thin for its dtype are relaxed by this much, relative to their numbers
ATOM = 1e-15  # absolute resolution of an action component


QUIET = np.errstate(over="ignore", invalid="ignore", under="ignore")  # infinities are compared, not reported


class Form(NamedTuple):
    """The common form: low, high [..., d] and rows [..., K, d]."""

    low: Array
    high: Array
    rows: Rows


class ConvexSet(SafeSet):
    """A box and separable rows. Subclasses define their parameters and the rows that follow from them.

    A kind from outside this package needs `kind`, `parameters`, `unbounded`, `_form` and `shifted`.
    """

    parameters: ClassVar[Mapping[str, tuple[str, ...]]]
    """Attribute names in the order of the encoding, with their axes: "d" action components, "m" rows."""
    unbounded: ClassVar[Mapping[str, float]]
    """The value of each parameter with which the set excludes nothing."""

    def __init__(self, *values: Array) -> None:
        xp_like = next((v for v in values if hasattr(v, "detach")), np.empty(0))
        for name, value in zip(self.parameters, values, strict=True):
            setattr(self, name, as_float(value, like=xp_like))

    @property
    def dimension(self) -> int:
        """Number of action components d."""
        return self._length("d")

    def _length(self, axis: str) -> int:
        """The length of a named axis of the parameters."""
        name, axes = next((n, axes) for n, axes in self.parameters.items() if axis in axes)
        return getattr(self, name).shape[axes.index(axis) - len(axes)]

    @classmethod
    def shapes(cls, dimension: int, rows: int = 1) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter of one set."""
        lengths = {"d": dimension, "m": rows}
        return {name: tuple(lengths[axis] for axis in axes) for name, axes in cls.parameters.items()}

    @classmethod
    def unbounded_parameters(cls, dimension: int, rows: int = 1) -> tuple[np.ndarray, ...]:
        """Parameters of a set that excludes nothing."""
        return tuple(np.full(s, cls.unbounded[name]) for name, s in cls.shapes(dimension, rows).items())

    @abstractmethod
    def _form(self) -> Form:
        """This set as box and rows."""

    @cached_property
    def form(self) -> Form:
        """This set as box and rows."""
        return self._form()

    @cached_property
    def _lifted(self) -> Form:
        """The same, scaled away from the smallest floats."""
        low, high, rows = self.form
        return Form(low, high, rows.lifted())

    @abstractmethod
    def shifted(self, delta: Array) -> Self:
        """The set with its thresholds moved inwards by delta [...] in its own units: margin - delta."""

    # --- what users call ---------------------------------------------------------------------------------

    @QUIET
    def margin(self, a: Array) -> Array:
        low, high, rows = self._form_like(a, self.form)
        xp, a = namespace(a), as_float(a)
        margin = xp.min(xp.minimum(a - low, high - a), axis=-1)
        if rows.bound.shape[-1]:
            margin = xp.minimum(margin, xp.min(-exact.excess(rows, a), axis=-1))
        return margin

    @QUIET
    def contains(self, a: Array) -> Array:
        return _within_tolerance(a, *self._form_like(a, self._lifted))

    @QUIET
    def nearest(self, a: Array, metric: Array | None = None, *, thorough: bool = True) -> Nearest:
        """The nearest allowed action to a [..., d], by sum metric_i (x_i - a_i)^2; metric is 1 if absent.

        After the cast to a's dtype the point satisfies bounds and rows in exact arithmetic wherever the set has
        room: where some point of that dtype is within the bounds and meets each row with 4 eps * (sum |terms| +
        |c|) to spare. With less room it may break a row within the tolerance of `contains`. `empty` is proven.
        Proposals further away than `FAR` diameters are moved nearer first, see `bring_near`. Without `thorough`, only
        the batched solver is used.
        """
        xp = namespace(a)
        batch = np.broadcast_shapes(tuple(a.shape[:-1]), self.batch_shape)
        size, d = int(np.prod(batch, dtype=int)), self.dimension

        def flat(v: Array, *tail: int) -> Array:
            return xp.reshape(xp.broadcast_to(v, (*batch, *tail)), (size, *tail))

        low, high, rows = self._form_like(a, self._lifted)
        k = rows.bound.shape[-1]
        low, high = flat(low, d), flat(high, d)
        pos, neg, quad = (flat(c, k, d) for c in (rows.pos, rows.neg, rows.quad))
        rows = rows.with_arrays(pos, neg, quad, flat(rows.bound, k))
        weight = xp.ones_like(low) if metric is None else flat(as_float(metric, like=a), d)
        point, found, empty = _nearest_after_cast(flat(a, d), low, high, rows, weight, thorough)
        point[~found] = xp.nan
        return Nearest(xp.reshape(point, (*batch, d)), xp.reshape(found, batch), xp.reshape(empty, batch))

    # --- storage -----------------------------------------------------------------------------------------

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of the parameters."""
        values = ((getattr(self, name), len(axes)) for name, axes in self.parameters.items())
        return np.broadcast_shapes(*(tuple(v.shape[: v.ndim - axes]) for v, axes in values))

    def _spread(self, batch: tuple[int, ...]) -> list[Array]:
        """The parameters, each broadcast to the batch axes."""
        spread = []
        for name, axes in self.parameters.items():
            value = getattr(self, name)
            shape = (*batch, *value.shape[value.ndim - len(axes) :])
            same = tuple(value.shape) == shape
            spread.append(value if same else namespace(value).broadcast_to(value, shape))
        return spread

    @property
    def spec(self) -> Spec:
        spec: Spec = {"kind": self.kind, "dimension": self.dimension}
        return (
            {**spec, "rows": self._length("m")} if any("m" in v for v in self.parameters.values()) else spec
        )

    def encode(self) -> Array:
        batch = self.batch_shape
        flat = [namespace(v).reshape(v, (*batch, -1)) for v in self._spread(batch)]
        return namespace(*flat).concat(flat, axis=-1)

    @classmethod
    def code_width(cls, spec: Spec) -> int:
        return sum(int(np.prod(shape, dtype=int)) for shape in cls._shapes(spec))

    @classmethod
    def from_code(cls, code: Array, spec: Spec) -> Self:
        shapes, values, start = cls._shapes(spec), [], 0
        for shape in shapes:
            end = start + int(np.prod(shape, dtype=int))
            values.append(namespace(code).reshape(code[..., start:end], (*code.shape[:-1], *shape)))
            start = end
        return cls(*values)

    @classmethod
    def _shapes(cls, spec: Spec) -> list[tuple[int, ...]]:
        """The shape of each parameter behind the batch axes."""
        return list(cls.shapes(spec["dimension"], spec.get("rows", 0)).values())

    def everything(self) -> Self:
        return self.shifted(-np.inf)

    def only(self, action: Array) -> "ConvexSet":
        raise GxError(
            f"a {self.kind} set cannot hold a single action in its own form; intersect it with a box, box first"
        )

    def __getitem__(self, index: Index) -> Self:
        return type(self)(*(v[index] for v in self._spread(self.batch_shape)))

    def __repr__(self) -> str:
        shape = f", batch {self.batch_shape}" if self.batch_shape else ""
        return f"{type(self).__name__}(dimension {self.dimension}{shape})"

    def _form_like(self, a: Array, form: Form) -> Form:
        if a.shape[-1] != self.dimension:
            raise GxError(
                f"{self!r} got actions of dimension {a.shape[-1]}; give arrays [..., {self.dimension}]"
            )
        low, high, rows = form
        if namespace(a) is namespace(low):
            return form
        rows = rows.with_arrays(*(as_float(v, like=a) for v in (rows.pos, rows.neg, rows.quad, rows.bound)))
        return Form(as_float(low, like=a), as_float(high, like=a), rows)


def _no_rows(low: Array) -> Rows:
    xp = namespace(low)
    empty = low[..., None, :][..., :0, :]
    return Rows(empty, empty, empty, xp.sum(empty, axis=-1))


class Box(ConvexSet):
    """low <= a <= high; both [..., d]."""

    kind = "box"
    parameters: ClassVar = {"low": ("d",), "high": ("d",)}
    unbounded: ClassVar = {"low": -np.inf, "high": np.inf}

    low: Array
    high: Array

    def __init__(self, low: Array, high: Array) -> None:
        super().__init__(low, high)

    def _form(self) -> Form:
        return Form(self.low, self.high, _no_rows(self.low))

    def only(self, action: Array) -> Self:
        return type(self)(action, action)

    def shifted(self, delta: Array) -> Self:
        delta = as_float(delta, like=self.low)[..., None]
        return type(self)(self.low + delta, self.high - delta)


class Polytope(ConvexSet):
    """A a <= b; A [..., m, d], b [..., m]. A row with an infinite b is padding."""

    kind = "polytope"
    parameters: ClassVar = {"A": ("m", "d"), "b": ("m",)}
    unbounded: ClassVar = {"A": 0.0, "b": np.inf}

    A: Array
    b: Array

    def __init__(self, A: Array, b: Array) -> None:
        super().__init__(A, b)

    def _form(self) -> Form:
        rows = Rows(self.A, -self.A, 0.0 * self.A, self.b, kinked=False, curved=False)
        return _unbounded(namespace(self.A).sum(self.A, axis=-2), rows)

    def shifted(self, delta: Array) -> Self:
        return type(self)(self.A, self.b - as_float(delta, like=self.b)[..., None])

    def padded(self, rows: int) -> Self:
        """The same set with `rows` rows, so that states with fewer can be stacked with states with more."""
        xp, missing = namespace(self.A), rows - self.A.shape[-2]
        if missing < 0:
            raise GxError(f"a polytope with {self.A.shape[-2]} rows does not fit into {rows}; raise max_rows")
        A = xp.concat([self.A, xp.zeros((*self.A.shape[:-2], missing, self.dimension))], axis=-2)
        b = xp.concat([self.b, xp.full((*self.b.shape[:-1], missing), xp.inf)], axis=-1)
        return type(self)(A, b)


class _OneRow(ConvexSet):
    """Sets with weights w [..., d] and one threshold c [...]."""

    parameters: ClassVar = {"w": ("d",), "c": ()}
    unbounded: ClassVar = {"w": 0.0, "c": np.inf}

    w: Array
    c: Array

    def __init__(self, w: Array, c: Array) -> None:
        super().__init__(w, c)

    def shifted(self, delta: Array) -> Self:
        return type(self)(self.w, self.c - as_float(delta, like=self.c))

    def _one_row(self, pos: Array, neg: Array, quad: Array, *, curved: bool = False) -> Form:
        arrays = (pos[..., None, :], neg[..., None, :], quad[..., None, :], self.c[..., None])
        rows = Rows(*arrays, kinked=not curved, curved=curved)
        return _unbounded(self.w, rows)


class WeightedL1(_OneRow):
    """sum |w_i a_i| <= c; w [..., d], c [...]."""

    kind = "weighted_l1"

    def _form(self) -> Form:
        size = namespace(self.w).abs(self.w)
        return self._one_row(size, size, 0.0 * size)


class PositiveSum(_OneRow):
    """sum max(w_i a_i, 0) <= c; w [..., d], c [...]."""

    kind = "positive_sum"

    def _form(self) -> Form:
        xp = namespace(self.w)
        return self._one_row(xp.clip(self.w, 0.0, None), xp.clip(-self.w, 0.0, None), 0.0 * self.w)


class Ellipsoid(_OneRow):
    """sum w_i a_i^2 <= c; w [..., d] >= 0, c [...]."""

    kind = "ellipsoid"

    def __init__(self, w: Array, c: Array) -> None:
        super().__init__(w, c)
        if bool(namespace(self.w).any(self.w < 0)):
            raise GxError("an ellipsoid's weights must not be negative; the set would not be convex")

    def _form(self) -> Form:
        return self._one_row(0.0 * self.w, 0.0 * self.w, self.w, curved=True)


def _unbounded(like: Array, rows: Rows) -> Form:
    xp = namespace(like)
    return Form(xp.full_like(like, -xp.inf), xp.full_like(like, xp.inf), rows)


def _within_tolerance(a: Array, low: Array, high: Array, rows: Rows) -> Array:
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


def _nearest_after_cast(
    a: Array, low: Array, high: Array, rows: Rows, weight: Array, thorough: bool
) -> Nearest:
    """Nearest points [B, d] that satisfy the rows after the cast to a's dtype, not merely up to rounding."""
    xp, proposed = namespace(a), as_float(a)
    within = (proposed >= low) & (proposed <= high)  # NaN is not
    inside = ~row_any(~within) & ~row_any(exact.excess(rows, proposed) > 0)
    (todo,) = xp.nonzero(~inside)
    if len(todo) == len(a):
        return _moved(a, low, high, rows, weight, thorough)
    point, found, empty = xp.asarray(a, copy=True), xp.asarray(inside, copy=True), xp.zeros_like(inside)
    if len(todo):
        bounds, some = (low[todo], high[todo]), rows[todo]
        point[todo], found[todo], empty[todo] = _moved(a[todo], *bounds, some, weight[todo], thorough)
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
        for i in lost[~empty[lost]].tolist() if thorough else ():
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
        start = to_numpy(as_float(point[i]))
        pulled = pull_inside(start, _problem(i, inner_low, inner_high, rows, weight), Rounding.of(a))
        if pulled is not None:
            point[i] = xp.astype(as_float(pulled, like=a), a.dtype)
    # The last word is the definition: a point that does not pass is not an answer.
    found[todo] = _within_tolerance(point[todo], low[todo], high[todo], rows[todo])
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
