"""A finite MDP whose states carry safe sets."""

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from rlpd_gx.errors import GxError
from rlpd_gx.theory.rows import Rows, check_distributions, expected_rewards, longest_row, stack_rows
from rlpd_gx.types import Array

if TYPE_CHECKING:
    import gymnasium


class TabularMDP:
    """A finite MDP with the safe set of each state; checked on construction, large arrays are not copied.

    transitions: [S, A, S] array, A sparse matrices [S, S] in a list, or one sparse [S*A, S] (row s * A + a).
    rewards: [S, A], or per successor [S, A, S] (any form that transitions may have).
    discount: in [0, 1). allowed: bool [S, A], the safe sets.
    fallback: action, or one per state [S], that runs where nothing is allowed; such states are `inevitable`.

    A terminal state returns to itself with reward 0 and one allowed action: with more it would keep earning entropy.
    """

    def __init__(
        self,
        transitions: Any,
        rewards: Any,
        discount: float,
        allowed: ArrayLike,
        fallback: ArrayLike | None = None,
    ) -> None:
        self.discount = _check_discount(discount)
        self.transitions, self.num_states, self.num_actions = stack_rows(transitions, "transitions")
        sums = check_distributions(self.transitions, self.num_actions)
        self.rewards, self.reward_scale = expected_rewards(rewards, self.transitions, sums, self.num_actions)
        self.allowed, self.inevitable = _safe_sets(allowed, fallback, self.rewards.shape)
        # A sum off one by x would shift values by x / (1 - gamma); dividing here saves a copy of the table.
        self._weights = self.discount / sums
        self.longest_row = longest_row(self.transitions)

    def __repr__(self) -> str:
        kind = "dense" if isinstance(self.transitions, np.ndarray) else "sparse"
        return (
            f"TabularMDP({self.num_states} states, {self.num_actions} actions, {kind}, "
            f"discount {self.discount:g}, {self.allowed.mean():.1%} of actions allowed, "
            f"{self.inevitable.sum()} inevitable states)"
        )

    def q_from(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """`R + gamma * P V`: one backup of values [S] to q [S, A], forbidden actions included."""
        q = self.transitions @ values
        q *= self._weights
        q = q.reshape(self.num_states, self.num_actions)
        q += self.rewards
        return q

    def successors(self, state: int, action: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Possible next states, and their probabilities."""
        row = self.transitions[[state * self.num_actions + action]]
        dense = row[0] if isinstance(row, np.ndarray) else row.toarray()[0]
        states = np.flatnonzero(dense)
        return states, dense[states] / dense.sum()

    def unguarded(self) -> "TabularMDP":
        """The same MDP with every action allowed, in terminal states too."""
        return self.with_safe_sets(np.ones_like(self.allowed), np.zeros_like(self.inevitable))

    def with_safe_sets(self, allowed: NDArray[np.bool_], inevitable: NDArray[np.bool_]) -> "TabularMDP":
        """The same MDP, tables shared, with other non-empty safe sets [S, A] and flags [S]."""
        other = copy.copy(self)
        other.allowed, _ = _safe_sets(allowed, None, self.rewards.shape)
        other.inevitable = inevitable
        return other

    def markov_chain(self, policy: Array) -> tuple[Rows, NDArray[np.float64]]:
        """`gamma * P_pi` [S, S] and `R_pi` [S] of a policy: actions [S] or probabilities [S, A]."""
        states = np.arange(self.num_states)
        if policy.ndim == 1:
            rows = states * self.num_actions + policy
            chain, weights = self.transitions[rows], self._weights[rows]
            if isinstance(chain, np.ndarray):
                chain *= weights[:, None]
            else:
                chain.data *= np.repeat(weights, np.diff(chain.indptr))
            return chain, self.rewards[states, policy]
        weights = policy * self._weights.reshape(policy.shape)
        rewards = np.einsum("sa,sa->s", policy, self.rewards)
        if isinstance(self.transitions, np.ndarray):
            table = self.transitions.reshape(self.num_states, self.num_actions, self.num_states)
            return np.matmul(weights[:, None, :], table)[:, 0, :], rewards
        width = self.transitions.indices.dtype  # a wider type would make scipy copy the whole table
        starts = np.arange(0, weights.size + 1, self.num_actions, dtype=width)
        pairs = np.arange(weights.size, dtype=width)
        mixing = sparse.csr_array((weights.reshape(-1), pairs, starts), shape=(self.num_states, weights.size))
        mixing.eliminate_zeros()
        return mixing @ self.transitions, rewards

    @classmethod
    def from_gymnasium(
        cls,
        env: "gymnasium.Env[int, int]",
        discount: float,
        allowed: ArrayLike | Callable[[int, int], bool] | None = None,
        fallback: ArrayLike | None = None,
    ) -> "TabularMDP":
        """The MDP of a toy-text environment, from its table `P`; its states keep their numbers.

        allowed: bool [S, A] over the environment's states, a rule (state, action) -> bool, or None for all.
        A state is added at the end: every transition flagged `terminated` goes there and earns no more.
        """
        table = getattr(env.unwrapped, "P", None)
        if not isinstance(table, dict):
            raise GxError(
                f"{env} has no transition table P; use a toy-text environment such as FrozenLake or Taxi"
            )
        num_states, num_actions, end = len(table), len(table[0]), len(table)
        rows = [end * num_actions + action for action in range(num_actions)]
        columns = [end] * num_actions
        probabilities = [1.0] * num_actions
        rewards = np.zeros((num_states + 1, num_actions))
        for state in range(num_states):
            for action in range(num_actions):
                for probability, successor, reward, terminated in table[state][action]:
                    rows.append(state * num_actions + action)
                    columns.append(end if terminated else successor)
                    probabilities.append(probability)
                    rewards[state, action] += probability * reward
        shape = ((num_states + 1) * num_actions, num_states + 1)
        transitions = sparse.coo_array((probabilities, (rows, columns)), shape=shape)
        if callable(allowed):
            allowed = [[bool(allowed(s, a)) for a in range(num_actions)] for s in range(num_states)]
        mask = np.ones((num_states, num_actions), dtype=bool) if allowed is None else np.asarray(allowed)
        _check_mask(mask, (num_states, num_actions))
        only_first = np.arange(num_actions)[None, :] == 0
        if fallback is not None and np.ndim(fallback) == 1:
            fallback = np.append(np.asarray(fallback), 0)
        return cls(transitions, rewards, discount, np.concatenate([mask, only_first]), fallback)


def _check_discount(discount: float) -> float:
    try:
        value = float(discount)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 <= value < 1.0:
        raise GxError(f"discount is {discount}; give a number of at least 0 and below 1")
    return value


def _check_mask(allowed: Array, shape: tuple[int, ...]) -> None:
    if allowed.dtype != np.bool_:
        raise GxError(f"allowed holds {allowed.dtype}; give booleans, for instance allowed.astype(bool)")
    if allowed.shape != shape:
        raise GxError(f"allowed has shape {allowed.shape}; give [S, A] = {shape}")


def _safe_sets(
    allowed: ArrayLike, fallback: ArrayLike | None, shape: tuple[int, ...]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Non-empty safe sets [S, A], and which states [S] needed the fallback."""
    mask = np.asarray(allowed)
    _check_mask(mask, shape)
    empty = np.asarray(~mask.any(axis=1))
    states = np.flatnonzero(empty)
    if len(states) and fallback is None:
        others = f" (and {len(states) - 1} more states)" if len(states) > 1 else ""
        raise GxError(
            f"state {states[0]} allows none of its {shape[1]} actions{others}; "
            "allow one, or declare the action that runs there with fallback="
        )
    if fallback is not None:
        action = np.asarray(fallback)
        if action.dtype.kind not in "iu" or action.shape not in ((), shape[:1]):
            raise GxError(
                f"fallback must be one action or one per state, whole numbers of shape () or {shape[:1]}"
            )
        action = np.broadcast_to(action, shape[:1])
        wrong = (action < 0) | (action >= shape[1])
        if wrong.any():
            state = int(np.argmax(wrong))
            raise GxError(
                f"the fallback of state {state} is action {action[state]}; actions are 0 to {shape[1] - 1}"
            )
        if len(states):
            mask = mask.copy()
            mask[states, action[states]] = True
    return mask, empty
