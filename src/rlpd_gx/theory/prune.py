"""Recursive feasibility: remove actions that can lead to states where nothing is allowed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rlpd_gx.theory.mdp import TabularMDP
from rlpd_gx.theory.rows import Rows
from rlpd_gx.types import Array


@dataclass(frozen=True)
class Pruning:
    """What `prune` removed, and the remaining MDP.

    mdp: outside its `inevitable` states, no allowed action can lead into one.
    removed: bool [S, A], the actions removed from the safe sets.
    doomed: [n] states that lost their last action. In `mdp` they are flagged inevitable and keep the allowed
        actions that delay the dead end longest, so that nothing forbidden runs where something was allowed.
    steps_left: [S] guaranteed steps before a dead end; 0 in one, -1 where it can always be avoided.
    """

    mdp: TabularMDP
    removed: NDArray[np.bool_]
    doomed: NDArray[np.int64]
    steps_left: NDArray[np.int64]

    def __str__(self) -> str:
        lines = [f"{self.removed.sum()} actions removed, {len(self.doomed)} states doomed"]
        lines += [
            f"  state {state}: action {action} removed" for state, action in np.argwhere(self.removed)[:20]
        ]
        if self.removed.sum() > 20:
            lines.append(f"  ... and {self.removed.sum() - 20} more")
        return "\n".join(lines)


def prune(mdp: TabularMDP) -> Pruning:
    """Remove every allowed action that can lead to a state without allowed actions, to the fixed point.

    Dead ends are the states where only the declared fallback runs (`mdp.inevitable`).
    """
    num_actions = mdp.num_actions
    left = mdp.allowed & ~mdp.inevitable[:, None]
    before = left.copy()
    kept = mdp.allowed & mdp.inevitable[:, None]
    steps_left = np.where(mdp.inevitable, 0, -1)
    frontier = np.flatnonzero(mdp.inevitable)
    columns = _by_successor(mdp.transitions)
    # Each state enters the frontier once, so each transition is visited once, however long the chains are.
    steps = 0
    while frontier.size:
        steps += 1
        states, actions = np.divmod(_predecessors(columns, frontier), num_actions)
        hit = left[states, actions]
        states, actions = states[hit], actions[hit]
        left[states, actions] = False
        emptied = ~left[states].any(axis=1)
        # These were removed in their state's last round: no other action there lasts longer.
        kept[states[emptied], actions[emptied]] = True
        frontier = np.unique(states[emptied])
        steps_left[frontier] = steps
    doomed = np.flatnonzero(steps_left > 0)
    pruned = mdp.with_safe_sets(left | kept, steps_left >= 0)
    return Pruning(pruned, before & ~left, doomed, steps_left)


def _by_successor(rows: Rows) -> Array | sparse.csc_array:
    """Where each state can be entered from, as columns; a byte per transition instead of its probability."""
    if isinstance(rows, np.ndarray):
        return rows
    possible = sparse.csr_array(((rows.data > 0).view(np.int8), rows.indices, rows.indptr), shape=rows.shape)
    return possible.tocsc()


def _predecessors(columns: Array | sparse.csc_array, frontier: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows `s * A + a` with a positive probability of entering the frontier, each once."""
    if isinstance(columns, np.ndarray):
        return np.flatnonzero((columns[:, frontier] > 0).any(axis=1))
    entering = columns[:, frontier]
    return np.unique(entering.indices[entering.data > 0])
