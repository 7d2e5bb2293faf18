"""Projection by a conic solver, written from the sets' definitions and sharing no code with ours."""

import clarabel
import numpy as np
from scipy import sparse


def project(a, low, high, constraints):
    """Nearest point to a; constraints are ("halfspace" | "l1" | "positive_sum" | "ellipsoid", w, c) triples."""
    d = len(a)
    with_auxiliary = [c for c in constraints if c[0] in ("l1", "positive_sum")]
    n = d * (1 + len(with_auxiliary))
    eye, none = np.eye(d), np.zeros((d, n))

    def block(x_part, slot, auxiliary_part):
        rows = np.zeros((len(x_part), n))
        rows[:, :d] = x_part
        if slot is not None:
            rows[:, d * (1 + slot) : d * (2 + slot)] = auxiliary_part
        return rows

    linear, right = [block(eye, None, None), block(-eye, None, None)], [high, -low]
    cones, cone_right = [], []
    slot = 0
    for kind, w, c in constraints:
        if kind == "halfspace":
            linear.append(block(w[None], None, None))
            right.append([c])
        elif kind == "ellipsoid":  # |sqrt(w) x| <= sqrt(c)
            rows = none.copy()
            rows[:, :d] = -np.diag(np.sqrt(w))
            cones.append(np.vstack([np.zeros(n), rows]))
            cone_right.append(np.concatenate([[np.sqrt(c)], np.zeros(d)]))
        else:  # t >= w x, t >= -w x (or t >= 0), sum t <= c
            below = -np.diag(w) if kind == "l1" else np.zeros((d, d))
            linear += [
                block(np.diag(w), slot, -eye),
                block(below, slot, -eye),
                block(np.zeros((1, d)), slot, 1.0),
            ]
            right += [np.zeros(d), np.zeros(d), [c]]
            slot += 1
    G, h = np.vstack(linear), np.concatenate(right)
    keep = np.isfinite(h)
    G, h = G[keep], h[keep]
    kinds = [clarabel.NonnegativeConeT(len(h))] + [clarabel.SecondOrderConeT(d + 1)] * len(cones)
    objective = sparse.csc_matrix((np.ones(d), (range(d), range(d))), shape=(n, n))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    solver = clarabel.DefaultSolver(
        objective,
        np.concatenate([-a, np.zeros(n - d)]),
        sparse.csc_matrix(np.vstack([G, *cones])),
        np.concatenate([h, *cone_right]),
        kinds,
        settings,
    )
    solution = solver.solve()
    return np.array(solution.x)[:d], solution.status


INFEASIBLE = (clarabel.SolverStatus.PrimalInfeasible, clarabel.SolverStatus.AlmostPrimalInfeasible)
