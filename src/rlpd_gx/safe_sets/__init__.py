"""Kinds of safe sets: membership, nearest action, margin, encoding. Used by Guardian and Learner alike."""

from rlpd_gx.safe_sets.base import Nearest, SafeSet, Spec, code_width, decode
from rlpd_gx.safe_sets.compound import Intersection, Union
from rlpd_gx.safe_sets.convex import (
    TOLERANCE,
    TOLERANCE_FLOAT32,
    Box,
    ConvexSet,
    Ellipsoid,
    Polytope,
    PositiveSum,
    WeightedL1,
)
from rlpd_gx.safe_sets.mask import Mask, ProductMask, choose_nearest, distances

__all__ = [
    "TOLERANCE",
    "TOLERANCE_FLOAT32",
    "Box",
    "ConvexSet",
    "Ellipsoid",
    "Intersection",
    "Mask",
    "Nearest",
    "Polytope",
    "PositiveSum",
    "ProductMask",
    "SafeSet",
    "Spec",
    "Union",
    "WeightedL1",
    "choose_nearest",
    "code_width",
    "decode",
    "distances",
]
