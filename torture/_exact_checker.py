"""Does an action satisfy rules, in exact arithmetic? Written from the rules' definitions, sharing no code with them."""

from collections.abc import Iterator
from fractions import Fraction

import clarabel
import numpy as np
from scipy import sparse

from torture._rule_cases import Case, Part

ROOM = 4  # a set has room if some action satisfies every row with this many eps of its numbers to spare


def violations(case: Case, actions: np.ndarray) -> np.ndarray:
    """Rows of the batch whose action [n, d] breaks the space or every branch; exact."""
    x = actions.astype(np.float64)
    outside = ~((x >= case.low.astype(float)) & (x <= case.high.astype(float))).all(axis=-1)
    holds, unsure = np.zeros(len(x), dtype=bool), np.zeros(len(x), dtype=bool)
    for branch in case.branches:
        worst = [_sides(part, x) for part in branch]
        surely = np.logical_and.reduce([w[0] for w in worst])
        broken = np.logical_or.reduce([w[1] for w in worst])
        holds |= surely
        unsure |= ~surely & ~broken
    bad = outside | ~(holds | unsure)
    for i in np.flatnonzero(~outside & ~holds & unsure):
        bad[i] = not satisfies(case, int(i), actions[i])
    return np.flatnonzero(bad)


def _sides(part: Part, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where a part surely holds and where it is surely broken [n], [n]."""
    if part.form == "bounds":
        inside = np.asarray(((x >= part.first) & (x <= part.second)).all(axis=-1))
        return inside, ~inside
    with np.errstate(all="ignore"):
        if part.form == "halfspace":
            terms, limit = part.first * x[:, None, :], part.second
        else:
            wx = part.first * x
            one = {"l1": np.abs(wx), "positive_sum": np.maximum(wx, 0.0), "ellipsoid": wx * x}[part.form]
            terms, limit = one[:, None, :], part.second[:, None]
        excess = terms.sum(axis=-1) - limit
        # twice what d + 4 roundings to nearest can cost
        error = (x.shape[-1] + 4) * 2.0**-52 * (np.abs(terms).sum(axis=-1) + np.abs(limit)) + 1e-290
        return np.asarray((excess < -error).all(axis=-1)), np.asarray((excess > error).any(axis=-1))


def satisfies(case: Case, row: int, action: np.ndarray, room: float = 0.0) -> bool:
    """Whether one action is in the space and in a branch; with `room`, to spare by that many eps of the numbers."""
    x = [Fraction(float(v)) for v in action]
    low, high = ([Fraction(float(v)) for v in side] for side in (case.low, case.high))
    if not all(bottom <= v <= top for bottom, v, top in zip(low, x, high, strict=True)):
        return False
    spare = Fraction(room) * Fraction(float(np.finfo(case.dtype).eps))
    return any(all(_holds(part, row, x, spare) for part in branch) for branch in case.branches)


def _holds(part: Part, row: int, x: list[Fraction], spare: Fraction) -> bool:
    first, second = part.first[row], part.second[row]
    if part.form == "bounds":
        return all(
            float(a) <= v <= float(b) if np.isfinite([a, b]).all() else False
            for a, v, b in zip(first, x, second, strict=True)
        )
    for weights, limit in zip(np.atleast_2d(first), np.atleast_1d(second), strict=True):
        terms = [Fraction(float(w)) * v for w, v in zip(weights, x, strict=True)]
        if part.form == "l1":
            terms = [abs(t) for t in terms]
        elif part.form == "positive_sum":
            terms = [max(t, Fraction(0)) for t in terms]
        elif part.form == "ellipsoid":
            terms = [t * v for t, v in zip(terms, x, strict=True)]
        c = Fraction(float(limit))
        if sum(terms, Fraction(0)) + spare * (sum(map(abs, terms), Fraction(0)) + abs(c)) > c:
            return False
    return True


def witness(case: Case, row: int, room: float = 0.0) -> np.ndarray | None:
    """An action that satisfies the rules exactly (with room), if the known point or a conic solver yields one."""
    candidates = [case.inside[row].astype(case.dtype)]
    for point in candidates:
        if satisfies(case, row, point, room):
            return point
    for branch in case.branches:
        for point in _deepest(case, branch, row):
            action = np.clip(point.astype(case.dtype), case.low, case.high)
            if np.isfinite(action).all() and satisfies(case, row, action, room):
                return action
    return None


def _deepest(case: Case, branch: list[Part], row: int) -> Iterator[np.ndarray]:
    """Points far inside a branch by Clarabel: maximise t with every row, scaled to length one, met by t to spare."""
    d = len(case.low)
    low, high = case.low.astype(float), case.high.astype(float)
    lifted = sum(part.form in ("l1", "positive_sum") for part in branch)
    n = d * (1 + lifted) + 1
    linear, right, cones, cone_right, slot = [], [], [], [], 0

    def plane(g: np.ndarray, h: float, at: int = 0, share: float = 0.0, spare: float = 1.0) -> None:
        full = np.zeros(n)
        full[:d], full[-1] = g, spare
        if at:
            full[d * at : d * (at + 1)] = share
        linear.append(full)
        right.append(h)

    for part in branch:
        if part.form == "bounds":
            low, high = np.maximum(low, part.first[row]), np.minimum(high, part.second[row])
    for i in range(d):
        plane(np.eye(d)[i], high[i])
        plane(-np.eye(d)[i], -low[i])
    for part in branch:
        if part.form == "bounds":
            continue
        for w, c in zip(np.atleast_2d(part.first[row]), np.atleast_1d(part.second[row]), strict=True):
            size = float(np.abs(w).max())
            if not size > 1e-250 or not np.isfinite(c):
                continue
            w, c = w / size, float(c) / size
            if part.form == "halfspace":
                plane(w, c, spare=float(np.linalg.norm(w)))
            elif part.form == "ellipsoid":
                if c < 0:
                    return
                rows = np.zeros((d + 1, n))
                rows[1:, :d], rows[0, -1] = -np.diag(np.sqrt(w)), 1.0
                cones.append(rows)
                cone_right.append(np.append(np.sqrt(c), np.zeros(d)))
            else:
                slot += 1
                for i in range(d):
                    for sign in (1.0, -1.0) if part.form == "l1" else (1.0, 0.0):
                        full = np.zeros(n)
                        full[i], full[d * slot + i] = sign * w[i], -1.0
                        linear.append(full)
                        right.append(0.0)
                plane(np.zeros(d), c, at=slot, share=1.0, spare=float(np.abs(w).sum()))
    full = np.zeros(n)
    full[-1] = 1.0
    linear.append(full)
    right.append(1.0)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    kinds = [clarabel.NonnegativeConeT(len(right))] + [clarabel.SecondOrderConeT(d + 1)] * len(cones)
    try:
        solver = clarabel.DefaultSolver(
            sparse.csc_matrix((n, n)), -full, sparse.csc_matrix(np.vstack([*linear, *cones])),
            np.concatenate([right, *cone_right]), kinds, settings,
        )  # fmt: skip
        point = np.array(solver.solve().x)[:d]
    except Exception:  # the solver's own limits prove nothing
        return
    yield point
