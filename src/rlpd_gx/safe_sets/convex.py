"""Convex safe sets for Box action spaces: boxes and separable rows, all projected onto by one solver."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.safe_sets import compiled, exact
from rlpd_gx.safe_sets.backend import Array, as_float, common_shape, namespace
from rlpd_gx.safe_sets.base import Index, Nearest, SafeSet, Spec
from rlpd_gx.safe_sets.projection import (
    TOLERANCE,
    TOLERANCE_FLOAT32,
    Problems,
    nearest_after_cast,
    within_tolerance,
)
from rlpd_gx.safe_sets.separable import Rows

__all__ = [
    "TOLERANCE",
    "TOLERANCE_FLOAT32",
    "Box",
    "ConvexSet",
    "Ellipsoid",
    "Form",
    "Polytope",
    "PositiveSum",
    "WeightedL1",
]

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
        if not all(type(v) is np.ndarray and v.dtype == np.float64 for v in values):
            like = next((v for v in values if hasattr(v, "detach")), np.empty(0))
            values = tuple(as_float(v, like=like) for v in values)
        for name, value in zip(self.parameters, values, strict=True):
            setattr(self, name, value)

    @property
    def dimension(self) -> int:
        """Number of action components d."""
        return self._length("d")

    def _length(self, axis: str) -> int:
        """The length of a named axis of the parameters."""
        for name, axes in self.parameters.items():
            if axis in axes:
                return getattr(self, name).shape[axes.index(axis) - len(axes)]
        raise KeyError(axis)

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
        return within_tolerance(a, *self._form_like(a, self._lifted))

    def nearest(self, a: Array, metric: Array | None = None, *, thorough: bool = True) -> Nearest:
        """The nearest allowed action to a [..., d], by sum metric_i (x_i - a_i)^2; metric is 1 if absent.

        After the cast to a's dtype the point satisfies bounds and rows in exact arithmetic wherever the set has
        room: where some point of that dtype is within the bounds and meets each row with 4 eps * (sum |terms| +
        |c|) to spare. With less room it may break a row within the tolerance of `contains`. `empty` is proven.
        Proposals further away than `FAR` diameters are moved nearer first, see `bring_near`. Without `thorough`, only
        the batched solver is used.
        """
        if type(a) is np.ndarray and a.ndim == 1 and metric is None and self._alone is not None:
            point = self._alone(a)
            if point is not None:
                return Nearest(point, np.True_, np.False_)
        return self._nearest(a, metric, thorough)

    @cached_property
    def _alone(self) -> Callable[[np.ndarray], np.ndarray | None] | None:
        """The compiled projection of one action, None for a batch; it returns None where it is not certain."""
        low, high, rows = self._lifted
        shape = (*rows.bound.shape, self.dimension)
        spelled_out = low.shape == high.shape == shape[1:] and rows.pos.shape == rows.quad.shape == shape
        if self.batch_shape or namespace(low, rows.pos) is not np or not spelled_out:
            return None
        return compiled.one_at_a_time(low, high, rows)

    @QUIET
    def _nearest(self, a: Array, metric: Array | None, thorough: bool) -> Nearest:
        xp, d = namespace(a), self.dimension
        batch = common_shape([tuple(a.shape[:-1]), self.batch_shape])
        size = math.prod(batch)

        def flat(v: Array, *tail: int) -> Array:
            common = v.ndim <= len(tail)  # the same for the whole batch
            shape = tail if common else (*batch, *tail)
            v = v if tuple(v.shape) == shape else xp.broadcast_to(v, shape)
            return v[None] if common else xp.reshape(v, (size, *tail))

        low, high, rows = self._form_like(a, self._lifted)
        k = rows.bound.shape[-1]
        pos, neg, quad = (flat(c, k, d) for c in (rows.pos, rows.neg, rows.quad))
        rows = rows.with_arrays(pos, neg, quad, flat(rows.bound, k))
        weight = as_float(np.ones(d) if metric is None else metric, like=a)
        sets = Problems(flat(low, d), flat(high, d), rows, flat(weight, d))
        a = xp.reshape(xp.broadcast_to(a, (*batch, d)), (size, d))
        point, found, empty = nearest_after_cast(a, sets, thorough)
        point[~found] = xp.nan
        return Nearest(xp.reshape(point, (*batch, d)), xp.reshape(found, batch), xp.reshape(empty, batch))

    # --- storage -----------------------------------------------------------------------------------------

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of the parameters."""
        shapes = []
        for name, axes in self.parameters.items():
            shape = tuple(getattr(self, name).shape)
            shapes.append(shape[: len(shape) - len(axes)])
        return common_shape(shapes)

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
        values = [getattr(self, name) for name in self.parameters]
        axes = self.parameters.values()
        if len({v.shape[: v.ndim - len(own)] for v, own in zip(values, axes, strict=True)}) > 1:
            values = self._spread(self.batch_shape)
        if type(index) is int:  # `...`: a threshold stays an array, since converting a number is slow
            return type(self)(*[v[index, ...] for v in values])
        return type(self)(*[v[index] for v in values])

    def __getstate__(self) -> dict[str, object]:  # compiled functions stay in this process
        return {name: value for name, value in vars(self).items() if name != "_alone"}

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
        return _unbounded(self.A, (*self.A.shape[:-2], self.A.shape[-1]), rows)

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
        return _unbounded(self.w, tuple(self.w.shape), rows)


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
        if bool((self.w < 0).any()):
            raise GxError("an ellipsoid's weights must not be negative; the set would not be convex")

    def _form(self) -> Form:
        return self._one_row(0.0 * self.w, 0.0 * self.w, self.w, curved=True)


def _unbounded(like: Array, shape: tuple[int, ...], rows: Rows) -> Form:
    """The rows without bounds [..., d]."""
    xp = namespace(like)
    high = xp.full(shape, xp.inf, dtype=like.dtype, device=like.device)
    return Form(-high, high, rows)
