"""`rlpd-gx theory`: the guarded Bellman operator as a tool."""

import math
import time
from pathlib import Path
from typing import Annotated

from rlpd_gx.cli.arguments import Argument, Option


def solve(
    file: Annotated[Path, Argument(help="MDP as .npz: discount, allowed, rewards, transitions.")],
    output: Annotated[
        Path | None,
        Option(help="Where the result goes [FILE.solution.npz].", short="o"),
    ] = None,
    tolerance: Annotated[float, Option(help="Largest error allowed in any value; it is certified.")] = 1e-6,
    alpha: Annotated[float, Option(help="Temperature; above 0 the soft operator is solved.")] = 0.0,
    prune: Annotated[
        bool, Option(help="First remove actions that can lead to where nothing is allowed.")
    ] = False,
) -> None:
    """Solve a guarded MDP to a certified error and write q, values and policy.

    FILE holds discount [], allowed bool [S, A], rewards [S, A] or [S, A, S], and transitions [S, A, S]
    or, sparse, transitions_data, transitions_indices and transitions_indptr of a CSR matrix [S*A, S]
    whose row s * A + a belongs to state s and action a. Optional: fallback [] or [S], the action that
    runs where none is allowed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from rlpd_gx import theory
    from rlpd_gx.errors import GxError

    target = output if output is not None else file.with_suffix(".solution.npz")
    if target.exists() and file.exists() and target.samefile(file):
        raise GxError(f"{target} is the MDP itself; write the result elsewhere with -o")
    if not target.parent.is_dir():  # said before the work, not after
        raise GxError(f"the folder {target.parent} does not exist; make it, or write elsewhere with -o")
    started = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as line:
        task = line.add_task(f"reading {file.name}", total=None)
        mdp = theory.load_mdp(file)
        report = ""
        if prune:
            pruning = theory.prune(mdp)
            mdp, report = pruning.mdp, f"{pruning}\n"
        widest = 0.0

        def show(iterations: int, bound: float) -> None:
            """Fill the bar by orders of magnitude: the error falls geometrically."""
            nonlocal widest
            widest = max(widest, bound)
            share = math.log(widest / bound) / math.log(widest / tolerance) if widest > tolerance else 1.0
            text = f"backup {iterations}: error at most {bound:.1e}, wanted {tolerance:.1e}"
            line.update(task, description=text, completed=min(share, 1.0), total=1.0)

        solution = theory.guarded_value_iteration(mdp, tolerance, alpha=alpha, progress=show)
    theory.save_solution(target, mdp, solution, alpha)
    print(mdp)
    print(
        f"{report}solved in {solution.iterations} backups, {time.perf_counter() - started:.1f} s; "
        f"every value within {solution.error_bound:.2g} of the exact one\nwritten to {target}"
    )


def verify(
    gamma: Annotated[
        list[float] | None, Option(help="Discount; may be repeated [0.5, 0.9, 0.99, 0.999].")
    ] = None,
    mdps: Annotated[int, Option(min=1, help="Random MDPs drawn for each discount.")] = 5,
    states: Annotated[int, Option(min=1, help="States of each MDP.")] = 50,
    actions: Annotated[int, Option(min=1, help="Actions of each MDP; about half are forbidden.")] = 6,
    pairs: Annotated[int, Option(min=2, help="Pairs of q tables compared on each MDP.")] = 100,
    alpha: Annotated[float, Option(min=1e-6, help="Temperature of the soft operator.")] = 0.5,
    seed: Annotated[int, Option(min=0, help="Seed of the draws.")] = 0,
) -> None:
    """Show on random MDPs that the guarded operators contract by gamma, and that certificates hold.

    A factor is the largest |TQ - TQ'| / |Q - Q'| seen; it must not exceed gamma. An error is the largest
    distance of a quick solution from a far more exact one; it must not exceed the bound certified beside it.
    Exit code 1 if anything does.
    """
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from rlpd_gx.theory.contraction import verify_discount

    drawn = f"{states} states, {actions} actions, alpha {alpha:g}, seed {seed}"
    table = Table(title=f"{mdps} random MDPs for each gamma: {drawn}")
    for heading in ("gamma", "hard factor", "soft factor", "hard error", "bound", "soft error", "bound", ""):
        table.add_column(heading, justify="right")
    rng = np.random.default_rng(seed)
    all_hold = True
    for discount in gamma or (0.5, 0.9, 0.99, 0.999):
        seen = verify_discount(rng, discount, mdps, states, actions, pairs, alpha)
        all_hold &= seen.holds
        numbers = [f"{seen.gamma:g}", f"{seen.hard.factor:.6f}", f"{seen.soft.factor:.6f}"]
        numbers += [f"{number:.1e}" for kind in (seen.hard, seen.soft) for number in (kind.error, kind.bound)]
        table.add_row(*numbers, "holds" if seen.holds else "[red]FAILS[/red]")
    Console().print(table)
    if not all_hold:
        raise SystemExit(1)
