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
    share = one.audit.counts.interventions / one.audit.counts.proposals
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
    a, cases = problems(np.random.default_rng(0))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    # Ours are exact to about 1e-12: ask the same of the solver.
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    table = Table(
        title=f"Projecting {ROWS:,} actions of dimension {DIMENSION}, box included", title_justify="left"
    )
    for name in ("set", "ours, ms", "Clarabel per row, ms", "ratio", "target", "largest difference"):
        table.add_column(name, justify="left" if name == "set" else "right")
    for name, (safe, make) in cases.items():
        inputs = [make(i) for i in range(sample)]
        answers = {}

        def ours(safe=safe, answers=answers):
            answers["ours"] = safe.project(a)

        def theirs(inputs=inputs, answers=answers):
            answers["theirs"] = np.array(
                [clarabel.DefaultSolver(*p, settings).solve().x[:DIMENSION] for p in inputs]
            )

        mine, rival = best([ours, theirs])
        rival *= ROWS / sample
        difference = np.abs(answers["ours"][:sample] - answers["theirs"]).max()
        table.add_row(
            name,
            f"{mine * 1e3:.1f}",
            f"{rival * 1e3:.0f}",
            f"{rival / mine:.0f}",
            ">= 50",
            f"{difference:.0e}",
        )
    console.print(table)


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
