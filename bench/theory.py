"""Guarded value iteration: memory and time at a million states, and speed beside pymdptoolbox.

    python -m bench.theory            # all of it: a few minutes, about 3 GB
    python -m bench.theory --large 100000 --peer 300

Each large solve runs in a process of its own, so that its peak memory is its own. Rivals are timed in turns
within one run; the fastest of the turns counts.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

# One thread for every solver: on a shared machine, threads that wait for each other measure the neighbours.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import mdptoolbox.mdp
import numpy as np
from bench.timing import keep
from rich.console import Console
from rich.table import Table
from scipy import sparse

from rlpd_gx.theory import TabularMDP, guarded_value_iteration

DISCOUNT, TOLERANCE, ACTIONS, SUCCESSORS = 0.99, 1e-6, 10, 10


def large_arrays(kind, num_states, seed=0):
    """The arrays of a sparse MDP, filled block by block so that making them costs no second copy.

    Successors lie anywhere (values mix at once) or near by (news travels slowly: the hard case).
    """
    rng = np.random.default_rng(seed)
    per_state = ACTIONS * SUCCESSORS
    data = np.empty((num_states, per_state))
    indices = np.empty((num_states, per_state), dtype=np.int32)
    for first in range(0, num_states, 10_000):
        block = slice(first, min(first + 10_000, num_states))
        size = block.stop - block.start
        weights = rng.random((size, ACTIONS, SUCCESSORS))
        data[block] = (weights / weights.sum(axis=-1, keepdims=True)).reshape(size, per_state)
        if kind == "anywhere":
            indices[block] = rng.integers(num_states, size=(size, per_state))
        else:
            near = np.arange(block.start, block.stop)[:, None] + rng.integers(-50, 51, size=(size, per_state))
            indices[block] = near % num_states
    starts = np.arange(0, data.size + 1, SUCCESSORS, dtype=np.int32 if data.size < 2**31 else np.int64)
    rewards = rng.random((num_states, ACTIONS))
    allowed = rng.random((num_states, ACTIONS)) < 0.7
    allowed[:, 0] = True
    return data.reshape(-1), indices.reshape(-1), starts, rewards, allowed


def solve_large(kind, num_states, alpha):
    """In its own process: build, solve, and print what it took."""
    data, indices, starts, rewards, allowed = arrays = large_arrays(kind, num_states)
    data_bytes = sum(array.nbytes for array in arrays)
    transitions = sparse.csr_array((data, indices, starts), shape=(num_states * ACTIONS, num_states))
    began = time.perf_counter()
    mdp = TabularMDP(transitions, rewards, DISCOUNT, allowed)
    checked = time.perf_counter()
    solution = guarded_value_iteration(mdp, TOLERANCE, alpha=alpha)
    solved = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(
        json.dumps(
            [data_bytes, peak, checked - began, solved - checked, solution.iterations, solution.error_bound]
        )
    )


def large_table(num_states):
    size = f"{num_states:,} states, {ACTIONS} actions, {SUCCESSORS} successors"
    table = Table(title=f"Sparse: {size}, gamma {DISCOUNT}, to {TOLERANCE:g}")
    for heading in (
        "successors",
        "alpha",
        "data GB",
        "peak GB",
        "peak / data",
        "check s",
        "solve s",
        "backups",
        "error bound",
    ):
        table.add_column(heading, justify="right")
    for kind, alpha in (("anywhere", 0.0), ("near by", 0.0), ("anywhere", 0.1)):
        command = [
            sys.executable,
            "-m",
            "bench.theory",
            "--child",
            kind,
            "--large",
            str(num_states),
            "--alpha",
            str(alpha),
        ]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        data_bytes, peak, check, solve, iterations, bound = json.loads(output)
        cells = [
            kind,
            f"{alpha:g}",
            f"{data_bytes / 1e9:.2f}",
            f"{peak / 1e9:.2f}",
            f"{peak / data_bytes:.2f}",
        ]
        table.add_row(*cells, f"{check:.1f}", f"{solve:.1f}", str(iterations), f"{bound:.1e}")
    return table


def peer_arrays(kind, num_states, num_actions, seed=0):
    """Dense transitions [S, A, S] and rewards [S, A]; every action allowed, since the peer knows no guard."""
    rng = np.random.default_rng(seed)
    if kind == "anywhere":
        weights = rng.random((num_states, num_actions, num_states))
    else:
        weights = np.zeros((num_states, num_actions, num_states))
        near = np.arange(num_states)[:, None, None] + rng.integers(
            -5, 6, size=(num_states, num_actions, SUCCESSORS)
        )
        np.put_along_axis(weights, near % num_states, rng.random(near.shape), axis=-1)
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights, rng.random((num_states, num_actions))


def ours(transitions, rewards):
    mdp = TabularMDP(transitions, rewards, DISCOUNT, np.ones(rewards.shape, dtype=bool))
    return guarded_value_iteration(mdp, TOLERANCE).values


def peer(algorithm, *tolerance):
    def run(by_action, rewards):
        solver = algorithm(by_action, rewards, DISCOUNT, *tolerance)
        solver.run()
        return np.array(solver.V)

    return run


def exact_values(transitions, rewards):
    """Policy iteration by linear solves, until a backup changes nothing."""
    states = np.arange(len(rewards))
    policy, values = rewards.argmax(axis=1), np.zeros(len(rewards))
    while True:
        chain = DISCOUNT * transitions[states, policy]
        values = np.linalg.solve(np.eye(len(rewards)) - chain, rewards[states, policy])
        q = rewards + DISCOUNT * (transitions @ values)
        if np.abs(q.max(axis=1) - values).max() < 1e-10:
            return values
        policy = q.argmax(axis=1)


def peer_table(num_states, num_actions, turns):
    size = f"{num_states:,} states x {num_actions} actions"
    table = Table(title=f"Dense: {size}, gamma {DISCOUNT}, to {TOLERANCE:g}, input checks included")
    for heading in ("successors", "solver", "seconds", "times ours", "true error of values"):
        table.add_column(heading, justify="right")
    for kind in ("anywhere", "near by"):
        transitions, rewards = peer_arrays(kind, num_states, num_actions)
        by_action = np.ascontiguousarray(transitions.transpose(1, 0, 2))
        rivals = {
            "rlpd-gx": (ours, transitions),
            "pymdptoolbox ValueIteration": (peer(mdptoolbox.mdp.ValueIteration, TOLERANCE), by_action),
            "pymdptoolbox PolicyIterationModified": (
                peer(mdptoolbox.mdp.PolicyIterationModified, TOLERANCE),
                by_action,
            ),
            "pymdptoolbox PolicyIteration (exact)": (peer(mdptoolbox.mdp.PolicyIteration), by_action),
        }
        seconds = {name: [] for name in rivals}
        values = {}
        for _ in range(turns):
            for name, (solve, table_given) in rivals.items():
                if min(seconds[name], default=0.0) > 10.0:
                    continue  # one turn of a slow one tells enough
                began = time.perf_counter()
                values[name] = solve(table_given, rewards)
                seconds[name].append(time.perf_counter() - began)
        exact = exact_values(transitions, rewards)
        for name in rivals:
            fastest = min(seconds[name])
            error = np.abs(values[name] - exact).max()
            table.add_row(
                kind, name, f"{fastest:.2f}", f"{fastest / min(seconds['rlpd-gx']):.1f}", f"{error:.1e}"
            )
    return table


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", type=int, default=1_000_000, help="states of the sparse MDP; 0 to skip")
    parser.add_argument(
        "--peer", type=int, default=1_000, help="states of the dense MDP beside pymdptoolbox; 0 to skip"
    )
    parser.add_argument("--turns", type=int, default=3, help="turns of each solver in the comparison")
    parser.add_argument("--child", choices=["anywhere", "near by"], help=argparse.SUPPRESS)
    parser.add_argument("--alpha", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        solve_large(arguments.child, arguments.large, arguments.alpha)
        return
    console = Console(width=120)
    if arguments.large:
        console.print(large_table(arguments.large))
    if arguments.peer:
        console.print(peer_table(arguments.peer, 50, arguments.turns))
    keep("theory")


if __name__ == "__main__":
    main()
