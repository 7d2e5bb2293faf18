"""Transition tables as rows: one row `s * A + a` per state and action, dense or sparse, checked once."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rlpd_gx.errors import GxError
from rlpd_gx.types import Array

Rows: TypeAlias = "NDArray[np.float64] | sparse.csr_array"

# float32 rows of a thousand successors sum to one up to this error; backups divide by the true sum.
SUM_TOLERANCE = 1e-6
# Rewards and temperatures below this cannot overflow, whatever the discount.
LARGEST = 1e150


def stack_rows(table: Any, what: str) -> tuple[Rows, int, int]:
    """Bring a table into rows [S*A, S]; return them with S and A. Dense arrays and CSR are not copied.

    table: [S, A, S] array, A sparse matrices [S, S], or one sparse matrix [S*A, S].
    """
    if sparse.issparse(table):
        rows = sparse.csr_array(table, dtype=np.float64)
        num_states = rows.shape[1]
        if num_states == 0 or rows.shape[0] == 0 or rows.shape[0] % num_states:
            raise GxError(
                f"{what} is a sparse matrix of shape {rows.shape}; give [S*A, S] with a row s * A + a "
                "for state s and action a"
            )
        return rows, num_states, rows.shape[0] // num_states
    if isinstance(table, Sequence):
        return _interleave(table, what)
    dense = np.asarray(table)
    _check_numeric(dense, what)
    if dense.ndim != 3 or dense.shape[0] != dense.shape[2] or 0 in dense.shape:
        by_action = dense.ndim == 3 and dense.shape[1] == dense.shape[2]
        hint = "; it looks like [A, S, S]: use .transpose(1, 0, 2)" if by_action else ""
        raise GxError(f"{what} has shape {dense.shape}; give [S, A, S], or sparse matrices{hint}")
    num_states, num_actions, _ = dense.shape
    return dense.astype(np.float64, copy=False).reshape(-1, num_states), num_states, num_actions


def _check_numeric(array: Array, what: str) -> None:
    if array.dtype.kind not in "fiub":
        raise GxError(f"{what} holds {array.dtype}; give real numbers")


def _interleave(matrices: Sequence[Any], what: str) -> tuple[sparse.csr_array, int, int]:
    """Interleave A sparse matrices [S, S] to rows [S*A, S], one action at a time to save memory."""
    num_actions = len(matrices)
    if num_actions == 0:
        raise GxError(f"{what} is an empty list; give one sparse matrix [S, S] per action")
    for action, matrix in enumerate(matrices):
        if not sparse.issparse(matrix):
            raise GxError(
                f"{what} of action {action} is no scipy sparse matrix; give A of them, or one array [S, A, S]"
            )
        if matrix.shape != (matrices[0].shape[0],) * 2:
            raise GxError(
                f"{what} of action {action} has shape {matrix.shape}; give each action one matrix [S, S]"
            )
    num_states = matrices[0].shape[0]
    if num_states == 0:
        raise GxError(f"{what} has no states; give at least one")
    by_action = [sparse.csr_array(matrix) for matrix in matrices]
    counts = np.stack([np.diff(matrix.indptr) for matrix in by_action], axis=1)  # [S, A]
    starts = np.zeros(counts.size + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    data = np.empty(starts[-1])
    indices = np.empty(starts[-1], dtype=np.int32 if starts[-1] < 2**31 else np.int64)
    for action, matrix in enumerate(by_action):
        first = starts[action:-1:num_actions] - matrix.indptr[:-1]
        place = np.repeat(first, counts[:, action]) + np.arange(matrix.indptr[-1])
        data[place] = matrix.data[: len(place)]
        indices[place] = matrix.indices[: len(place)]
    rows = sparse.csr_array((data, indices, starts), shape=(num_states * num_actions, num_states))
    return rows, num_states, num_actions


def check_distributions(rows: Rows, num_actions: int) -> NDArray[np.float64]:
    """Refuse rows that are no probability distributions; return their sums [S*A]."""
    if isinstance(rows, np.ndarray):
        entries = rows.reshape(-1)
    else:
        _check_structure(rows, num_actions)
        entries = rows.data
    # One pass each and no temporary array: NaN makes the comparison false, infinity shows in the sums.
    if not entries.min(initial=0.0) >= 0.0:
        worst = int(np.flatnonzero(~(entries >= 0.0))[0])
        state, action, successor = _locate(rows, worst, num_actions)
        raise GxError(
            f"the probability of going from state {state} by action {action} to state {successor} "
            f"is {entries[worst]:g}; probabilities must be zero or more"
        )
    sums = np.asarray(rows @ np.ones(rows.shape[1]))
    off = ~(np.abs(sums - 1.0) <= SUM_TOLERANCE)
    if off.any():
        row = int(np.argmax(off))
        state, action = divmod(row, num_actions)
        raise GxError(
            f"the transition probabilities of state {state}, action {action} sum to {sums[row]:.9g}, not 1; "
            "normalise the row (a terminal state is one that returns to itself with reward 0)"
        )
    return sums


def _check_structure(rows: sparse.csr_array, num_actions: int) -> None:
    """Compiled loops use these indices unchecked, so they are checked first."""
    if (np.diff(rows.indptr) < 0).any():
        state, action = divmod(int(np.argmax(np.diff(rows.indptr) < 0)), num_actions)
        raise GxError(f"indptr decreases at state {state}, action {action}; it must count entries row by row")
    low, high = rows.indices.min(initial=0), rows.indices.max(initial=0)
    if low < 0 or high >= rows.shape[1]:
        worst = int(np.flatnonzero((rows.indices < 0) | (rows.indices >= rows.shape[1]))[0])
        state, action, successor = _locate(rows, worst, num_actions)
        raise GxError(
            f"state {state}, action {action} leads to state {successor}, "
            f"which does not exist; states are 0 to {rows.shape[1] - 1}"
        )


def _locate(rows: Rows, entry: int, num_actions: int) -> tuple[int, int, int]:
    """State, action and successor of one stored entry."""
    if isinstance(rows, np.ndarray):
        row, successor = divmod(entry, rows.shape[1])
    else:
        row = int(np.searchsorted(rows.indptr, entry, side="right")) - 1
        successor = int(rows.indices[entry])
    return *divmod(row, num_actions), successor


def longest_row(rows: Rows) -> int:
    """Largest number of successors of a row: the number of terms in a backup's longest sum."""
    if isinstance(rows, np.ndarray):
        return rows.shape[1]
    return int(np.diff(rows.indptr).max(initial=1))


def expected_rewards(
    rewards: Any, rows: Rows, sums: NDArray[np.float64], num_actions: int
) -> tuple[NDArray[np.float64], float]:
    """Rewards [S, A], averaged over successors where given as [S, A, S], and the largest magnitude given."""
    shape = (rows.shape[1], num_actions)
    if not (sparse.issparse(rewards) or isinstance(rewards, Sequence)) and np.ndim(rewards) == 2:
        flat = np.asarray(rewards)
        _check_numeric(flat, "rewards")
        if flat.shape != shape:
            raise GxError(f"rewards has shape {flat.shape}; give [S, A] = {shape} or [S, A, S]")
        scale = float(np.abs(flat).max())
        if not scale < LARGEST:
            state, action = np.argwhere(~(np.abs(flat) < LARGEST))[0]
            raise GxError(
                f"the reward of state {state}, action {action} is {flat[state, action]}; give a finite number"
            )
        return flat.astype(np.float64, copy=False), scale
    by_successor, *given = stack_rows(rewards, "rewards")
    if tuple(given) != shape:
        raise GxError(
            f"rewards is for {given[0]} states and {given[1]} actions; transitions has [S, A] = {shape}"
        )
    if isinstance(by_successor, np.ndarray):
        entries = by_successor.reshape(-1)
    else:
        _check_structure(by_successor, num_actions)
        entries = by_successor.data
    scale = float(np.abs(entries).max(initial=0.0))
    if not scale < LARGEST:
        worst = int(np.argmin(np.abs(entries) < LARGEST))
        state, action, successor = _locate(by_successor, worst, num_actions)
        raise GxError(
            f"the reward of state {state}, action {action}, next state {successor} is {entries[worst]}; "
            "give a finite number (0 where the transition cannot happen)"
        )
    if not isinstance(rows, np.ndarray):
        totals = rows.multiply(by_successor).sum(axis=1)
    elif not isinstance(by_successor, np.ndarray):
        totals = by_successor.multiply(rows).sum(axis=1)
    else:
        totals = np.einsum("ij,ij->i", rows, by_successor)
    return (np.asarray(totals) / sums).reshape(shape), scale
