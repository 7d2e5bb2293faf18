"""Sets made of convex sets: all of them at once, or any of them."""

from typing import Any, ClassVar, Self

from rlpd_gx.errors import GxError
from rlpd_gx.safe_sets.backend import Array, as_float, common_shape, distances, namespace
from rlpd_gx.safe_sets.base import Index, Nearest, SafeSet, Spec, code_width, decode
from rlpd_gx.safe_sets.convex import ConvexSet, Form
from rlpd_gx.safe_sets.separable import Rows


class _Compound(SafeSet):
    """What intersections and unions have in common: their parts, one after the other in the code."""

    def __init__(self, *parts: ConvexSet) -> None:
        if not parts:
            raise GxError(f"an empty {self.kind} is no set of actions; give at least one part")
        dimensions = {p.dimension for p in parts}
        if len(dimensions) > 1:
            raise GxError(f"the parts of a set act on different dimensions: {sorted(dimensions)}")
        self.parts = parts

    @property
    def dimension(self) -> int:
        """Number of action components d."""
        return self.parts[0].dimension

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of the parameters."""
        return common_shape([p.batch_shape for p in self.parts])

    def shifted(self, delta: Array) -> Self:
        """Every part shifted."""
        return type(self)(*(p.shifted(delta) for p in self.parts))

    @property
    def spec(self) -> Spec:
        return {"kind": self.kind, "parts": [p.spec for p in self.parts]}

    def encode(self) -> Array:
        codes, batch = [p.encode() for p in self.parts], self.batch_shape
        xp = namespace(*codes)
        return xp.concat([xp.broadcast_to(c, (*batch, c.shape[-1])) for c in codes], axis=-1)

    @classmethod
    def code_width(cls, spec: Spec) -> int:
        return sum(code_width(p) for p in spec["parts"])

    @classmethod
    def from_code(cls, code: Array, spec: Spec) -> Self:
        parts: list[Any] = []
        end = 0
        for part in spec["parts"]:
            start, end = end, end + code_width(part)
            parts.append(decode(code[..., start:end], part))
        return cls(*parts)

    def __getitem__(self, index: Index) -> Self:
        shapes = [p.batch_shape for p in self.parts]
        if len(set(shapes) - {()}) > 1:
            raise GxError(f"parts with batch shapes {shapes} cannot be indexed together")
        # A part that is the same for all members stays as it is.
        return type(self)(*(p[index] if shape else p for p, shape in zip(self.parts, shapes, strict=True)))


class Intersection(_Compound, ConvexSet):
    """The actions that are in all of several convex sets."""

    kind = "intersection"
    parameters: ClassVar = {}

    def everything(self) -> Self:
        """The first part is the action space itself; the others are rules."""
        space, *rules = self.parts
        return type(self)(space, *(rule.everything() for rule in rules))

    def only(self, action: Array) -> Self:
        space, *rules = self.parts
        return type(self)(space.only(action), *(rule.everything() for rule in rules))

    def _form(self) -> Form:
        forms = [p.form for p in self.parts]
        like = next((f.low for f in forms if hasattr(f.low, "detach")), forms[0].low)
        xp, batch = namespace(like), self.batch_shape
        low, high = as_float(forms[0].low, like=like), as_float(forms[0].high, like=like)
        for form in forms[1:]:
            low = xp.maximum(low, as_float(form.low, like=like))
            high = xp.minimum(high, as_float(form.high, like=like))

        def joined(name: str, *tail: int) -> Array:
            columns = [as_float(getattr(f.rows, name), like=like) for f in forms]
            k = [f.rows.bound.shape[-1] for f in forms]
            return xp.concat(
                [xp.broadcast_to(c, (*batch, n, *tail)) for c, n in zip(columns, k, strict=True)],
                axis=-1 - len(tail),
            )

        d = self.dimension
        kinked, curved = (
            any(getattr(f.rows, n) for f in forms if f.rows.bound.shape[-1]) for n in ("kinked", "curved")
        )
        arrays = (joined("pos", d), joined("neg", d), joined("quad", d), joined("bound"))
        return Form(low, high, Rows(*arrays, kinked=kinked, curved=curved))


class Union(_Compound):
    """The actions of at least one of several convex sets; the nearest is the nearest of their nearest."""

    kind = "union"

    def everything(self) -> Self:
        return type(self)(*(part.everything() for part in self.parts))

    def only(self, action: Array) -> Self:
        return type(self)(*(part.only(action) for part in self.parts))

    def margin(self, a: Array) -> Array:
        return namespace(a).max(namespace(a).stack([p.margin(a) for p in self.parts]), axis=0)

    def contains(self, a: Array) -> Array:
        return namespace(a).any(namespace(a).stack([p.contains(a) for p in self.parts]), axis=0)

    def nearest(self, a: Array, metric: Array | None = None) -> Nearest:
        xp = namespace(a)
        parts = [part.nearest(a, metric) for part in self.parts]
        every = [xp.where(p.found, distances(p.point, a, metric), xp.inf) for p in parts]
        # Points of sets too thin for the dtype satisfy the rows only within the tolerance: all others are preferred.
        strict = [p.found & (s.margin(p.point) >= 0) for p, s in zip(parts, self.parts, strict=True)]
        best, closest, strictly = parts[0], every[0], strict[0]
        known = best.found | best.empty
        for here, distance, holds in zip(parts[1:], every[1:], strict[1:], strict=True):
            nearer = (holds & ~strictly) | ((holds == strictly) & (distance < closest))
            strictly = strictly | holds
            point = xp.where(nearer[..., None], here.point, best.point)
            best = Nearest(point, best.found | here.found, best.empty & here.empty)
            closest = xp.where(nearer, distance, closest)
            known = known & (here.found | here.empty)
        # A part without an answer may hold a nearer point: the nearest is then unknown, unless nothing can be nearer.
        found = best.found & (known | (closest == 0))
        return Nearest(xp.where(found[..., None], best.point, xp.nan), found, best.empty)
