"""What guarding costs: a verdict beside an environment step, batched projection beside a conic solver per row.

    python -m bench.guardian

Rivals take turns within one run, and the best turn of each counts. The solver's problems are built outside the
timing, to its advantage.
"""

import argparse
import platform
import sys
import time

import clarabel
import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import sparse

import rlpd_gx as gx

ROWS, DIMENSION = 4096, 6
ANY, RIGHT = np.array([True, True]), np.array([False, True])


def best(functions, turns=7):
    """Seconds of the best turn of each function, taken in turns."""
    times = [[] for _ in functions]
    for _ in range(turns):
        for function, record in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            record.append(time.perf_counter() - start)
    return [min(t) for t in times]


def verdicts(console, steps=20_000):
    env = gym.make("CartPole-v1")
    bare = env.unwrapped
    actions = np.random.default_rng(0).integers(0, 2, steps).tolist()

    def step(world):
        world.reset(seed=0)
        for action in actions:
            if world.step(action)[2]:
                world.reset()

    def certify(guardian, states):
        def run():
            for state, action in zip(states, actions, strict=True):
                guardian.certify(state, action)
            guardian.audit.as_dict()

        return run

    states = list(np.random.default_rng(1).normal(size=(steps, 4)).astype(np.float32) * 0.1)
    rule = gx.mask_rule(lambda s: ANY if s[2] < 0.05 else RIGHT, name="lean")
    one = gx.Guardian(env.action_space, rule)
    two = gx.Guardian(
        env.action_space, [rule, gx.mask_rule(lambda s: ANY if s[0] < 0.2 else RIGHT, name="edge")]
    )

    def calls():
        for state in states:
            rule.fn(state)

    *seconds, alone = best(
        [lambda: step(bare), lambda: step(env), certify(one, states), certify(two, states), calls]
    )
    table = Table(title="A verdict with audit, beside a step of CartPole-v1", title_justify="left")
    for name in ("", "microseconds", "of a bare step", "target"):
        table.add_column(name, justify="left" if not name else "right")
    names = (
        "step, bare",
        "step, as made by gym.make",
        "verdict, one mask rule",
        "verdict, two mask rules",
        "the rule's own code",
    )
    for name, s in zip(names, (*seconds, alone), strict=True):
        target = "<= 10%" if "one mask" in name else ""
        table.add_row(name, f"{s / steps * 1e6:.2f}", f"{s / seconds[0]:.1%}", target)
    console.print(table)
    share = one.audit.tally.corrections / one.audit.tally.proposals
    console.print(f"{share:.0%} of the proposals were moved.")


def problems(rng):
    """name -> (set, one (P, q, A, b, cones) per row)."""
    d, n = DIMENSION, ROWS
    a = rng.normal(size=(n, d))
    w = rng.normal(size=(n, d)) * 5
    A = rng.normal(size=(n, 4, d))
    low, high = -np.ones(d), np.ones(d)
    box = gx.Box(low, high)
    eye, box_right = np.eye(d), np.ones(2 * d)
    small = sparse.csc_matrix(np.eye(d))
    large = sparse.csc_matrix(np.diag(np.r_[np.ones(d), np.zeros(d)]))

    def plain(rows, right, cone=None):
        return lambda i: (
            small, -a[i], sparse.csc_matrix(np.vstack([eye, -eye, rows(i)])), np.concatenate([box_right, right(i)]),
            [clarabel.NonnegativeConeT(2 * d), cone or clarabel.NonnegativeConeT(len(right(i)))],
        )  # fmt: skip

    def lifted(below):  # t >= w x, t >= below, sum t <= c
        def one(i):
            side = np.block([
                [eye, 0 * eye], [-eye, 0 * eye], [np.diag(w[i]), -eye], [below(i), -eye],
                [np.zeros((1, d)), np.ones((1, d))],
            ])  # fmt: skip
            right = np.concatenate([box_right, np.zeros(2 * d), [10.0]])
            return (
                large,
                np.r_[-a[i], np.zeros(d)],
                sparse.csc_matrix(side),
                right,
                [clarabel.NonnegativeConeT(len(right))],
            )

        return one

    cone = clarabel.SecondOrderConeT(d + 1)
    ball = plain(
        lambda i: np.vstack([np.zeros(d), -np.diag(np.sqrt(np.abs(w[i])))]),
        lambda i: np.r_[1.0, np.zeros(d)],
        cone,
    )
    ten, one = np.full(n, 10.0), np.ones(n)
    sets = {
        "half-space": (
            gx.Polytope(w[:, None], one[:, None]),
            plain(lambda i: w[i][None], lambda i: np.ones(1)),
        ),
        "polytope, 4 rows": (
            gx.Polytope(A, np.full((n, 4), 0.5)),
            plain(lambda i: A[i], lambda i: np.full(4, 0.5)),
        ),
        "positive sum": (gx.PositiveSum(w, ten), lifted(lambda i: np.zeros((d, d)))),
        "weighted L1": (gx.WeightedL1(w, ten), lifted(lambda i: -np.diag(w[i]))),
        "ellipsoid": (gx.Ellipsoid(np.abs(w), one), ball),
    }
    return a, {name: (gx.Intersection(box, s), make) for name, (s, make) in sets.items()}


def projections(console, sample=512):
    """Beside Clarabel at its fairest (1e-9) and near our own accuracy (1e-12, which it does not always reach)."""
    a, cases = problems(np.random.default_rng(0))
    tolerances = (1e-9, 1e-12)
    table = Table(
        title=f"Projecting {ROWS:,} actions of dimension {DIMENSION}, box included", title_justify="left"
    )
    table.add_column("set")
    table.add_column("ours, ms", justify="right")
    for t in tolerances:
        for name in (f"Clarabel {t:g}, ms", "ratio", "largest difference"):
            table.add_column(name, justify="right")
    for name, (safe, make) in cases.items():
        inputs = [make(i) for i in range(sample)]
        answers = {}

        def ours(safe=safe, answers=answers):
            answers["ours"] = safe.project(a)

        def rival(tolerance, inputs=inputs, answers=answers):
            settings = clarabel.DefaultSettings()
            settings.verbose = False
            settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance

            def run():
                solved = [clarabel.DefaultSolver(*p, settings).solve().x[:DIMENSION] for p in inputs]
                answers[tolerance] = np.array(solved)

            return run

        mine, *theirs = best([ours, *(rival(t) for t in tolerances)])
        row = [name, f"{mine * 1e3:.1f}"]
        for t, seconds in zip(tolerances, theirs, strict=True):
            off = np.abs(answers[t] - answers["ours"][:sample]).max()
            seconds *= ROWS / sample
            row += [f"{seconds * 1e3:.0f}", f"{seconds / mine:.0f}", f"{off:.0e}"]
        table.add_row(*row)
    console.print(table)
    console.print("Target: a ratio of 50 or more.")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    console = Console(width=110)
    console.print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    verdicts(console)
    projections(console)


if __name__ == "__main__":
    sys.exit(main())
