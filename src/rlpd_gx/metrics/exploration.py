"""Where a policy has been: distinct SimHash codes of visited states, and the entropy of their counts."""

from collections.abc import Sequence

import numpy as np

from rlpd_gx.metrics.subject import Found, Subject
from rlpd_gx.types import Array

BITS = 16
EVERY = 1_000  # visited states between the points of a curve
SMALL = 7  # width and height of the frames that are hashed


class SimHash:
    """Codes from the signs of random projections: near states mostly share one.

    `centre` and `spread` [f] are those of a fixed reference set of states, so that codes of different runs compare.
    """

    def __init__(self, reference: Array, seed: int = 0) -> None:
        rows = features(reference)
        self.centre, spread = rows.mean(axis=0), rows.std(axis=0)
        self.spread = np.where(spread > 1e-8, spread, 1.0)
        self.projections = np.random.default_rng(seed).normal(size=(rows.shape[1], BITS))

    def __call__(self, states: Array) -> Array:
        """Codes [B] int64 of states [B, ...]."""
        signs = ((features(states) - self.centre) / self.spread) @ self.projections > 0
        return signs @ (1 << np.arange(signs.shape[1], dtype=np.int64))


def features(states: Array) -> Array:
    """States [B, ...] as rows [B, f]: images (bytes, last two axes) are averaged into small frames."""
    rows = np.asarray(states)
    if rows.dtype == np.uint8 and rows.ndim >= 3 and min(rows.shape[-2:]) >= 2 * SMALL:
        height, width = (size // SMALL for size in rows.shape[-2:])
        cut = rows[..., : height * SMALL, : width * SMALL].astype(np.float32)
        rows = cut.reshape(*cut.shape[:-2], SMALL, height, SMALL, width).mean(axis=(-3, -1))
    return rows.reshape(len(rows), -1).astype(np.float64)


def coverage(codes: Array) -> int:
    """Number of distinct codes."""
    return len(np.unique(codes))


def visitation_entropy(codes: Array) -> float:
    """Entropy in nats of the visit counts of codes."""
    _, counts = np.unique(codes, return_counts=True)
    share = counts / counts.sum()
    return float(-(share * np.log(share)).sum()) + 0.0


def growth(codes: Array) -> Found:
    """Coverage and visitation entropy of the first 1k, 2k, ... visited states, in the order of visits."""
    marks: Sequence[int] = [*range(EVERY, len(codes), EVERY), len(codes)] if len(codes) else []
    return {
        "step": list(marks),
        "coverage": [coverage(codes[:mark]) for mark in marks],
        "visitation_entropy": [visitation_entropy(codes[:mark]) for mark in marks],
    }


def exploration(subject: Subject) -> Found:
    """Coverage and visitation entropy of a training run, every 1k steps."""
    return growth(subject.visited_codes())
