"""What guarding costs: verdicts beside environment steps, projections beside solvers, and how both grow.

    python -m bench.guardian

Peers: Clarabel, DAQP, ProxQP and Moreau; `make bench` builds an environment that has them. What peers can
prepare outside the timing (problem matrices, compiled structure) is prepared outside.
"""

import argparse
import os
import platform
import sys
from importlib.util import find_spec

import clarabel
import gymnasium as gym
import numpy as np
from bench.timing import interleaved, keep, ratio, spread, verdict
from rich.console import Console
from rich.table import Table
from scipy import sparse

import rlpd_gx as gx
from rlpd_gx.safe_sets import compiled

ROWS, DIMENSION, SINGLES = 4096, 6, 200
US, MS = 1e-6, 1e-3
ANY, RIGHT = np.array([True, True]), np.array([False, True])


def table_of(title, *columns):
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in ("", "target") else "right")
    return table


# --- problems ---------------------------------------------------------------------------------------------------


def sets_of(rng, d, count, rows=4):
    """name -> a batch of sets in [-1, 1]^d as rules return them: parameters of each part."""
    w, A = 5 * rng.normal(size=(count, d)), rng.normal(size=(count, rows, d))
    ten, one = np.full(count, 10.0), np.ones(count)
    return {
        "bounds": [gx.Box(-0.1 * np.abs(w), 0.1 * np.abs(w))],
        "half-space": [gx.Polytope(w[:, None], one[:, None])],
        f"polytope, {rows} rows": [gx.Polytope(A, np.full((count, rows), 0.5))],
        "positive sum": [gx.PositiveSum(w, ten)],
        "weighted L1": [gx.WeightedL1(w, ten)],
        "ellipsoid": [gx.Ellipsoid(np.abs(w), one)],
        "L1 with ellipsoid": [gx.WeightedL1(w, ten), gx.Ellipsoid(np.abs(w), one)],
    }


def whole(parts, d):
    return gx.Intersection(gx.Box(-np.ones(d), np.ones(d)), *parts)


def corrected(safe, rng, d, count, dtype=np.float64):
    """Proposals that all have to move."""
    a = 2 * rng.normal(size=(count, d)).astype(dtype)
    for _ in range(20):
        inside = safe.margin(a) >= 0
        a[inside] *= 3
    return a


MAKERS = {
    gx.Box: gx.bounds_rule,
    gx.Polytope: gx.halfspace_rule,
    gx.PositiveSum: gx.positive_sum_rule,
    gx.WeightedL1: gx.l1_rule,
    gx.Ellipsoid: gx.ellipsoid_rule,
}


def guardian_for(parts, d):
    """A Guardian whose state is the number of the set."""
    rules = []
    for n, part in enumerate(parts):
        values = [getattr(part, name) for name in part.parameters]
        rules.append(
            MAKERS[type(part)](lambda i, values=values: tuple(v[i] for v in values), name=f"rule {n}")
        )
    return gx.Guardian(gym.spaces.Box(-1, 1, (d,), np.float32), rules)


# --- peers ------------------------------------------------------------------------------------------------------


def conic(kind, part, a, d):
    """Clarabel's input for one set with the box."""
    eye, box = np.eye(d), np.ones(2 * d)
    small = sparse.csc_matrix(eye)
    if isinstance(part, gx.Polytope):
        side, right = np.vstack([eye, -eye, part.A[kind]]), np.concatenate([box, part.b[kind]])
        return small, -a, sparse.csc_matrix(side), right, [clarabel.NonnegativeConeT(len(right))]
    w, c = part.w[kind], float(part.c[kind])
    if isinstance(part, gx.Ellipsoid):
        side = np.vstack([eye, -eye, np.zeros(d), -np.diag(np.sqrt(w))])
        right = np.concatenate([box, [np.sqrt(c)], np.zeros(d)])
        cones = [clarabel.NonnegativeConeT(2 * d), clarabel.SecondOrderConeT(d + 1)]
        return small, -a, sparse.csc_matrix(side), right, cones
    # t >= w x, t >= below, sum t <= c
    below = -np.diag(w) if isinstance(part, gx.WeightedL1) else np.zeros((d, d))
    side = np.block([
        [eye, 0 * eye], [-eye, 0 * eye], [np.diag(w), -eye], [below, -eye], [np.zeros((1, d)), np.ones((1, d))],
    ])  # fmt: skip
    right = np.concatenate([box, np.zeros(2 * d), [c]])
    large = sparse.csc_matrix(np.diag(np.r_[np.ones(d), np.zeros(d)]))
    return (
        large,
        np.r_[-a, np.zeros(d)],
        sparse.csc_matrix(side),
        right,
        [clarabel.NonnegativeConeT(len(right))],
    )


def clarabel_rows(part, a, d, count):
    inputs = [conic(i, part, a[i], d) for i in range(count)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-9
    return lambda: np.array([clarabel.DefaultSolver(*p, settings).solve().x[:d] for p in inputs])


def daqp_rows(part, a, d, count):
    import daqp

    H, upper = np.eye(d), np.concatenate([np.ones((count, d)), part.b[:count]], axis=1)
    lower = np.concatenate([-np.ones((count, d)), np.full(part.b[:count].shape, -1e30)], axis=1)
    sense = np.zeros(upper.shape[1], dtype=np.int32)
    f, A = -a[:count], np.ascontiguousarray(part.A[:count])
    return lambda: np.array([daqp.solve(H, f[i], A[i], upper[i], lower[i], sense)[0] for i in range(count)])


def proxqp_rows(part, a, d, count):
    from proxsuite import proxqp

    def solve():
        answers = []
        for i in range(count):
            k = len(part.b[i])
            qp = proxqp.dense.QP(d, 0, k, True)
            qp.settings.eps_abs = 1e-9
            qp.init(
                np.eye(d), -a[i], None, None, part.A[i], np.full(k, -1e20), part.b[i], -np.ones(d), np.ones(d)
            )
            qp.solve()
            answers.append(np.array(qp.results.x))
        return np.array(answers)

    return solve


def moreau_batch(part, a, d, count):
    import moreau

    k = part.b.shape[-1]
    eye = np.eye(d)
    side = np.concatenate(
        [np.broadcast_to(np.vstack([eye, -eye]), (count, 2 * d, d)), part.A[:count]], axis=1
    )
    pattern = sparse.csr_matrix(np.vstack([eye, -eye, np.ones((k, d))]))
    where = np.repeat(np.arange(2 * d + k), np.diff(pattern.indptr)), pattern.indices
    solver = moreau.CompiledSolver(
        n=d, m=2 * d + k, P_row_offsets=np.arange(d + 1), P_col_indices=np.arange(d),
        A_row_offsets=pattern.indptr, A_col_indices=pattern.indices,
        cones=moreau.Cones(num_nonneg_cones=2 * d + k),
        settings=moreau.Settings(device="cpu", batch_size=count),
    )  # fmt: skip
    P, A = np.ones((count, d)), np.ascontiguousarray(side[:, where[0], where[1]])
    q, b = -a[:count], np.concatenate([np.ones((count, 2 * d)), part.b[:count]], axis=1)

    def solve():
        solver.setup(P, A)
        return np.array(solver.solve(q, b).x)

    return solve


PEERS = {
    "DAQP": ("daqp", daqp_rows),
    "ProxQP": ("proxsuite", proxqp_rows),
    "Moreau": ("moreau", moreau_batch),
}


def installed():
    return {name: make for name, (module, make) in PEERS.items() if find_spec(module)}


# --- single verdicts --------------------------------------------------------------------------------------------


def single_verdicts(console):
    d, rng = DIMENSION, np.random.default_rng(0)
    env = gym.make("Hopper-v5").unwrapped
    torques = rng.uniform(-1, 1, (SINGLES, 3)).astype(np.float32)

    def hopper():
        env.reset(seed=0)
        for torque in torques:
            if env.step(torque)[2]:
                env.reset()

    calls, guardians = {"a bare Hopper-v5 step": hopper}, {}
    for name, parts in sets_of(rng, d, SINGLES).items():
        proposed = corrected(whole(parts, d), rng, d, SINGLES, np.float32)
        guardian = guardians[name] = guardian_for(parts, d)

        def certify(guardian=guardian, proposed=proposed):
            for i in range(SINGLES):
                guardian.certify(i, proposed[i])

        calls[name] = certify
    name, (rows,) = "polytope, 4 rows", sets_of(np.random.default_rng(0), d, SINGLES)["polytope, 4 rows"]
    safe = whole([rows], d)
    a = corrected(safe, rng, d, SINGLES)
    members = [safe[i] for i in range(SINGLES)]
    for member in members:
        _ = member._lifted
    calls["polytope, projection alone"] = lambda: [m.nearest(v) for m, v in zip(members, a, strict=True)]
    for peer in ("DAQP", "ProxQP"):
        if peer in installed():
            calls[f"polytope, {peer}"] = installed()[peer](rows, a, d, SINGLES)
    calls["polytope, Clarabel"] = clarabel_rows(rows, a, d, SINGLES)
    seconds = interleaved(calls)
    table = table_of(
        f"A single corrected verdict with audit, {d} components of 32 bits",
        "", "us (quartiles)", "of a Hopper step", "of DAQP", "target",
    )  # fmt: skip
    hop = seconds["a bare Hopper-v5 step"]
    for name, times in seconds.items():
        to_daqp = ratio(times, seconds["polytope, DAQP"]) if "polytope, DAQP" in seconds else float("nan")
        share, target = ratio(times, hop), ""
        if name in guardians:
            tally = guardians[name].audit.tally
            assert tally.corrections == tally.proposals
            target = verdict(share, f"single corrected verdict, {name} / a bare Hopper step", most=1)
        if name in ("polytope, 4 rows", "polytope, projection alone") and to_daqp == to_daqp:
            solve = "verdict" if name in guardians else "projection"
            beside = verdict(to_daqp, f"single {solve}, polytope / DAQP's solve", most=2)
            target += f"{'; ' if target else ''}DAQP: {beside}"
        polytope = f"{to_daqp:.2f}" if name.startswith("polytope") else ""
        table.add_row(name, spread(times, SINGLES * US), f"{share:.2f}", polytope, target)
    console.print(table)


def discrete_verdicts(console, steps=20_000):
    env = gym.make("CartPole-v1")
    bare = env.unwrapped
    actions = np.random.default_rng(0).integers(0, 2, steps).tolist()

    def step(world):
        world.reset(seed=0)
        for action in actions:
            if world.step(action)[2]:
                world.reset()

    def certify(guardian):
        for state, action in zip(states, actions, strict=True):
            guardian.certify(state, action)
        guardian.audit.as_dict()

    states = list(np.random.default_rng(1).normal(size=(steps, 4)).astype(np.float32) * 0.1)
    rule = gx.mask_rule(lambda s: ANY if s[2] < 0.05 else RIGHT, name="lean")
    edge = gx.mask_rule(lambda s: ANY if s[0] < 0.2 else RIGHT, name="edge")
    one, two = gx.Guardian(env.action_space, rule), gx.Guardian(env.action_space, [rule, edge])
    calls = {
        "a bare CartPole-v1 step": lambda: step(bare),
        "a step as made by gym.make": lambda: step(env),
        "verdict, one mask rule": lambda: certify(one),
        "verdict, two mask rules": lambda: certify(two),
        "the two rules' own code": lambda: [(rule.fn(s), edge.fn(s)) for s in states],
    }
    seconds = interleaved(calls)
    table = table_of("A discrete verdict with audit", "", "us (quartiles)", "of a bare step", "target")
    for name, times in seconds.items():
        share = ratio(times, seconds["a bare CartPole-v1 step"])
        what = f"discrete {name} / a bare CartPole step"
        target = verdict(share, what, most=0.1) if "verdict" in name else ""
        table.add_row(name, spread(times, steps * US), f"{share:.3f}", target)
    console.print(table)


# --- batches ----------------------------------------------------------------------------------------------------


def batches(console, sample=128):
    d, rng = DIMENSION, np.random.default_rng(0)
    table = table_of(
        f"Projecting {ROWS:,} actions of {d} components, box included",
        "", "ours, us a row", "Clarabel a row", "ratio", "DAQP a row", "ratio", "Moreau a row", "ratio", "target",
    )  # fmt: skip
    for name, parts in sets_of(rng, d, ROWS).items():
        if len(parts) > 1 or name == "bounds":
            continue
        safe, part = whole(parts, d), parts[0]
        a = corrected(safe, rng, d, ROWS)
        calls = {
            "ours": lambda safe=safe, a=a: safe.project(a),
            "Clarabel": clarabel_rows(part, a, d, sample),
        }
        if isinstance(part, gx.Polytope):
            calls |= {p: make(part, a, d, ROWS if p == "Moreau" else sample)
                      for p, make in installed().items() if p != "ProxQP"}  # fmt: skip
        mine = calls["ours"]()
        for peer, call in calls.items():
            answer = call()
            difference = np.abs(answer - mine[: len(answer)]).max()
            assert difference < 1e-3, (name, peer, difference)
        seconds = interleaved(calls, rounds=9)
        per_row = {n: t / (ROWS if n in ("ours", "Moreau") else sample) for n, t in seconds.items()}
        row = [name, spread(per_row["ours"], US)]
        for peer in ("Clarabel", "DAQP", "Moreau"):
            if peer in per_row:
                row += [spread(per_row[peer], US), f"{ratio(per_row[peer], per_row['ours']):.1f}"]
            else:
                row += ["", ""]
        if name.startswith("polytope"):
            peer, least = "Moreau", 10
        else:
            peer, least = "Clarabel", 100
        target = ""
        if peer in per_row:
            what = f"{ROWS:,} projections, {name}: {peer} / ours"
            target = verdict(ratio(per_row[peer], per_row["ours"]), what, least=least)
        table.add_row(*row, target)
    console.print(table)


# --- growth -----------------------------------------------------------------------------------------------------


def growth(console):
    rng = np.random.default_rng(0)

    def project(safe, a):
        return lambda: safe.project(a)

    def report(title, calls, per):
        seconds = interleaved(calls, rounds=7)
        table = table_of(title, *("", *(str(n) for n in per)))
        for name in dict.fromkeys(n for n, _ in calls):
            cells = [spread(seconds[name, n], per[n] * US).split(" ")[0] for n in per]
            table.add_row(name, *cells)
        console.print(table)

    calls, sizes = {}, (1, 2, 4, 8, 16, 32)
    for d in sizes:
        for name, parts in sets_of(rng, d, 1024).items():
            safe = whole(parts, d)
            calls[name, d] = project(safe, corrected(safe, rng, d, 1024))
    report("us a row against the number of components (1,024 rows)", calls, dict.fromkeys(sizes, 1024))
    calls, sizes = {}, (1, 2, 4, 8, 16, 32, 64, 128)
    for k in sizes:
        safe = whole([gx.Polytope(rng.normal(size=(256, k, 6)), np.full((256, k), 0.5))], 6)
        calls["polytope", k] = project(safe, corrected(safe, rng, 6, 256))
    report(
        "us a row against the number of half-spaces (256 rows, 6 components)",
        calls,
        dict.fromkeys(sizes, 256),
    )
    calls, sizes = {}, (1, 4, 16, 64, 256, 1024, 4096, 16384)
    for n in sizes:
        for name, parts in sets_of(rng, 6, n).items():
            if name.startswith(("polytope", "weighted")):
                safe = whole(parts, 6)
                calls[name, n] = project(safe, corrected(safe, rng, 6, n))
    report("us a row against the size of the batch (6 components)", calls, {n: n for n in sizes})
    calls, sizes = {}, (2, 16, 128, 1024, 4096)
    for n in sizes:
        masks = rng.random((64, n)) < 0.5
        masks[:, 0] = True
        numbers = masks.astype(float) - 0.5
        rule = gx.mask_rule(lambda s, masks=masks: masks[s], name="mask")
        margins = gx.margins_rule(lambda s, numbers=numbers: numbers[s], name="margins")
        remembered, judged = (gx.Guardian(gym.spaces.Discrete(n), r) for r in (rule, margins))
        chosen = rng.integers(0, n, 64).tolist()
        calls["mask rule, state seen before", n] = lambda g=remembered, c=chosen: [
            g.certify(i, c[i]) for i in range(64)
        ]
        calls["margins rule", n] = lambda g=judged, c=chosen: [g.certify(i, c[i]) for i in range(64)]
    report("us a discrete verdict against the number of actions", calls, dict.fromkeys(sizes, 64))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    console = Console(width=150)
    console.print(
        f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; CPU time, all threads of the process"
    )
    if compiled.kernel() is None:
        console.print("numba is not installed: the reference is measured.")
    missing = [name for name in PEERS if name not in installed()]
    if missing:
        console.print(
            f"not installed: {', '.join(missing)} (`make bench` builds an environment with all peers)"
        )
    single_verdicts(console)
    discrete_verdicts(console)
    batches(console)
    growth(console)
    keep("guardian")


if __name__ == "__main__":
    sys.exit(main())
