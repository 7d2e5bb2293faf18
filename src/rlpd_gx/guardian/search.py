"""For rules without structure: search along the segment to a known allowed action, accept only what is allowed."""

from collections.abc import Callable, Sequence

import numpy as np

from rlpd_gx.safe_sets import ConvexSet

GRID = 16  # points tried along the segment
HALVINGS = 24  # bisections towards the boundary after that
SAMPLES = 64  # points tried where no anchor is allowed

Ask = Callable[[np.ndarray, np.ndarray], np.ndarray]  # rows [n], actions [n, d] -> allowed [n]


def find_allowed(
    start: np.ndarray, usable: np.ndarray, convex: ConvexSet, ask: Ask, anchors: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Allowed actions near `start` [B, d], which is in the convex part of the rules where `usable` [B].

    Returns (point [B, d], exact [B], found [B]). A start that is allowed itself is the exact answer, since it is
    the nearest point of the convex part; anything found by searching is not known to be the nearest.
    """

    def inside(rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Points between two points of the convex part are in it, but not always after the cast."""
        return ask(rows, actions) & (_members(convex, rows).margin(actions) >= 0)

    point = np.where(usable[:, None], start, 0).astype(start.dtype)
    found = np.zeros(len(start), dtype=bool)
    rows = np.flatnonzero(usable)
    if len(rows):
        found[rows] = ask(rows, point[rows])
    exact = found.copy()
    for anchor in (*anchors, None):
        rows = np.flatnonzero(usable & ~found)
        if not len(rows):
            break
        if anchor is None:
            target, good = _sampled(point, rows, convex, ask)
        else:
            target = _members(convex, rows).project(anchor[rows].astype(start.dtype))
            good = ~np.isnan(target).any(axis=-1)
            good[good] = ask(rows[good], target[good])
        if good.any():
            point[rows[good]] = _along(point[rows[good]], target[good], rows[good], inside)
            found[rows[good]] = True
    return point, exact, found


def _along(start: np.ndarray, target: np.ndarray, rows: np.ndarray, ask: Ask) -> np.ndarray:
    """The first allowed point seen between a forbidden start and an allowed target, both [n, d]."""
    dtype = start.dtype
    begin, end = start.astype(np.float64), target.astype(np.float64)

    def at(t: np.ndarray) -> np.ndarray:
        return (begin + t[:, None] * (end - begin)).astype(dtype)

    forbidden, allowed = np.zeros(len(rows)), np.ones(len(rows))
    best = target.copy()
    looking = np.ones(len(rows), dtype=bool)
    for step in range(1, GRID):
        t = np.full(len(rows), step / GRID)
        (todo,) = np.nonzero(looking)
        if not len(todo):
            break
        good = ask(rows[todo], at(t)[todo])
        hit, miss = todo[good], todo[~good]
        allowed[hit], best[hit], looking[hit] = t[hit], at(t)[hit], False
        forbidden[miss] = t[miss]
    for _ in range(HALVINGS):
        t = (forbidden + allowed) / 2
        candidate = at(t)
        good = ask(rows, candidate)
        allowed, forbidden = np.where(good, t, allowed), np.where(good, forbidden, t)
        best[good] = candidate[good]
    return best


def _sampled(
    point: np.ndarray, rows: np.ndarray, convex: ConvexSet, ask: Ask
) -> tuple[np.ndarray, np.ndarray]:
    """The nearest allowed one of a fixed set of points spread over the convex part."""
    d = point.shape[-1]
    table = np.random.default_rng(0).random((SAMPLES, d))  # the same points for every state, every time
    low, high, _ = convex.form
    low, high = (np.broadcast_to(v, (len(point), d))[rows] for v in (low, high))
    low, high = np.where(np.isfinite(low), low, -1.0), np.where(np.isfinite(high), high, 1.0)
    best, closest = point[rows].copy(), np.full(len(rows), np.inf)
    here = _members(convex, rows)
    for share in table:
        sample = here.project((low + share * (high - low)).astype(point.dtype))
        usable = ~np.isnan(sample).any(axis=-1)
        usable[usable] = ask(rows[usable], sample[usable])
        distance = np.where(usable, np.linalg.norm(sample - point[rows], axis=-1), np.inf)
        nearer = distance < closest
        best[nearer], closest[nearer] = sample[nearer], distance[nearer]
    return best, np.isfinite(closest)


def _members(convex: ConvexSet, rows: np.ndarray) -> ConvexSet:
    """The sets of some rows; a set that is the same for all rows stays as it is."""
    return convex[rows] if convex.batch_shape else convex
