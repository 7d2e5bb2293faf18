"""Kinds of safe sets: which actions are allowed, which is nearest, how far the boundary is. Below both halves."""

from collections.abc import Sequence

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.safe_sets.backend import Array
from rlpd_gx.safe_sets.base import Nearest, SafeSet, Spec
from rlpd_gx.safe_sets.convex import (
    TOLERANCE,
    TOLERANCE_FLOAT32,
    Box,
    ConvexSet,
    Ellipsoid,
    Intersection,
    Polytope,
    PositiveSum,
    WeightedL1,
)

__all__ = [
    "TOLERANCE",
    "TOLERANCE_FLOAT32",
    "Box",
    "ConvexSet",
    "Ellipsoid",
    "Intersection",
    "Nearest",
    "Polytope",
    "PositiveSum",
    "SafeSet",
    "Spec",
    "WeightedL1",
    "decode",
]


def decode(code: Array, spec: Spec) -> SafeSet:
    """The safe set(s) that `encode` wrote: code [..., width] with the set's `spec`."""
    width = encoded_width(spec)
    if code.shape[-1] != width:
        raise GxError(
            f"a code of {code.shape[-1]} numbers cannot be a {spec['kind']} set, which takes {width}"
        )
    kind = spec["kind"]
    if kind == "intersection":
        parts, start = [], 0
        for part in spec["parts"]:
            end = start + encoded_width(part)
            parts.append(decode(code[..., start:end], part))
            start = end
        return Intersection(*parts)
    d = spec["dimension"]
    if kind == "box":
        return Box(code[..., :d], code[..., d:])
    if kind == "polytope":
        m = spec["rows"]
        return Polytope(code[..., : m * d].reshape((*code.shape[:-1], m, d)), code[..., m * d :])
    one_row = {"weighted_l1": WeightedL1, "positive_sum": PositiveSum, "ellipsoid": Ellipsoid}
    return one_row[kind](code[..., :d], code[..., d])


def encoded_width(spec: Spec) -> int:
    """How many numbers (bytes for masks) `encode` writes for a set of this spec."""
    kind = spec["kind"]
    if kind == "intersection":
        return sum(encoded_width(p) for p in spec["parts"])
    d = spec["dimension"]
    return {"box": 2 * d, "polytope": spec.get("rows", 0) * (d + 1)}.get(kind, d + 1)
