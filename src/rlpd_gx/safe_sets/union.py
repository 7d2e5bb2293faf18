"""Unions: allowed is what any part allows."""

from typing import Any, Self

import numpy as np

from rlpd_gx.safe_sets.backend import Array, as_float, namespace
from rlpd_gx.safe_sets.base import Nearest, SafeSet, Spec, code_width, decode_parts, encode_parts
from rlpd_gx.safe_sets.convex import ConvexSet, members


class Union(SafeSet):
    """The actions of at least one of several convex sets; the nearest is the nearest of their nearest."""

    kind = "union"

    def __init__(self, *parts: ConvexSet) -> None:
        self.parts = parts

    @property
    def dimension(self) -> int:
        """Number of action components d."""
        return self.parts[0].dimension

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of the parameters."""
        return np.broadcast_shapes(*(p.batch_shape for p in self.parts))

    def margin(self, a: Array) -> Array:
        return namespace(a).max(namespace(a).stack([p.margin(a) for p in self.parts]), axis=0)

    def contains(self, a: Array) -> Array:
        return namespace(a).any(namespace(a).stack([p.contains(a) for p in self.parts]), axis=0)

    def nearest(self, a: Array, metric: Array | None = None) -> Nearest:
        xp = namespace(a)
        weight = 1.0 if metric is None else as_float(metric, like=a)
        best, closest = None, None
        for part in self.parts:
            here = part.nearest(a, metric)
            distance = xp.sum(weight * (as_float(here.point) - as_float(a)) ** 2, axis=-1)
            distance = xp.where(here.found, distance, xp.inf)
            if best is None:
                best, closest = here, distance
                continue
            nearer = distance < closest
            best = Nearest(
                xp.where(nearer[..., None], here.point, best.point),
                best.found | here.found,
                best.empty & here.empty,
            )
            closest = xp.where(nearer, distance, closest)
        assert best is not None
        return best

    def shifted(self, delta: Array) -> Self:
        """The union of the shifted parts."""
        return type(self)(*(p.shifted(delta) for p in self.parts))

    @property
    def spec(self) -> Spec:
        return {"kind": self.kind, "parts": [p.spec for p in self.parts]}

    def encode(self) -> Array:
        return encode_parts(self.parts, self.batch_shape)

    @classmethod
    def code_width(cls, spec: Spec) -> int:
        return sum(code_width(p) for p in spec["parts"])

    @classmethod
    def from_code(cls, code: Array, spec: Spec) -> Self:
        return cls(*decode_parts(code, spec["parts"]))  # type: ignore[arg-type]

    def __getitem__(self, index: Any) -> Self:
        return type(self)(*members(self.parts, index, self.batch_shape))
