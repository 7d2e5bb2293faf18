"""Guarded value iteration with a certified error bound.

For any values V and one backup TV, with d = TV - V, monotonicity and the discount alone give, in every state,

    TV + gamma/(1-gamma) * min d  <=  V*  <=  TV + gamma/(1-gamma) * max d        (MacQueen 1966)

and the same interval holds for Q* around the q that produced TV. The middle of it is returned, and half its
width is the error bound (never more than gamma/(1-gamma) * max |d|). How V was found does not matter, so
cheap sweeps of the current policy run between two backups (modified policy iteration): the bound needs only one.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlpd_gx.errors import GxError
from rlpd_gx.theory.mdp import TabularMDP
from rlpd_gx.theory.operators import (
    as_probabilities,
    greedy_policy,
    guarded_max,
    policy_value,
    soft_max,
    soft_policy,
)
from rlpd_gx.theory.rows import LARGEST, Rows
from rlpd_gx.types import Array

Floats = NDArray[np.float64]
Progress = Callable[[int, float], None]

# Sweeps end once they have narrowed the interval this much: more would refine a policy that is about to change.
SWEEP_GAIN = 0.1
MAX_SWEEPS = 100
# Where a policy converges slowly, a small dense system is solved faster than swept.
SWEEPS_BEFORE_SOLVE = 5
DIRECT_STATES = 2000


@dataclass(frozen=True)
class GuardedSolution:
    """A fixed point of a guarded operator, with its error bound.

    q: [S, A], forbidden actions included (their value if taken once, guarded afterwards). values: [S].
    policy: actions [S] where alpha is 0, probabilities [S, A] otherwise.
    error_bound: no entry of q or values is farther from the exact one; the policy loses at most twice this.
    iterations: full backups made (policy sweeps in between are not counted).
    """

    q: Floats
    values: Floats
    policy: Array
    error_bound: float
    iterations: int


def guarded_value_iteration(
    mdp: TabularMDP, tolerance: float = 1e-6, *, alpha: float = 0.0, progress: Progress | None = None
) -> GuardedSolution:
    """Solve `Q = R + gamma * E[max over A_safe(s') of Q(s', .)]` to within tolerance, rounding included.

    alpha: temperature; above 0 the maximum becomes the soft one and the policy stochastic.
    progress: called with (iterations, error_bound) after every backup.
    """
    _check_alpha(alpha)
    if alpha == 0.0:
        q, values, bound, iterations = _iterate(
            mdp,
            lambda q: guarded_max(q, mdp.allowed),
            lambda q: mdp.markov_chain(greedy_policy(q, mdp.allowed)),
            tolerance,
            progress=progress,
        )
        return GuardedSolution(q, values, greedy_policy(q, mdp.allowed), bound, iterations)
    q, values, bound, iterations = _iterate(
        mdp,
        lambda q: soft_max(q, mdp.allowed, alpha),
        lambda q: _chain_with_entropy(mdp, soft_policy(q, mdp.allowed, alpha), alpha),
        tolerance,
        alpha=alpha,
        follow_above=0.5,  # combining the rows of all actions is expensive: only where backups make slow progress
        progress=progress,
    )
    return GuardedSolution(q, values, soft_policy(q, mdp.allowed, alpha), bound, iterations)


def evaluate_policy(
    mdp: TabularMDP,
    policy: ArrayLike,
    tolerance: float = 1e-6,
    *,
    alpha: float = 0.0,
    progress: Progress | None = None,
) -> GuardedSolution:
    """The q and values of any policy as it is: `renormalise` it first to keep it inside the safe sets.

    policy: probabilities [S, A] or actions [S]. alpha: weight of the policy's entropy in its value.
    """
    _check_alpha(alpha)
    probabilities = as_probabilities(policy, mdp.allowed.shape)
    chain = _chain_with_entropy(mdp, probabilities, alpha)
    q, values, bound, iterations = _iterate(
        mdp,
        lambda q: policy_value(q, probabilities, alpha),
        lambda q: chain,
        tolerance,
        alpha=alpha,
        progress=progress,
    )
    return GuardedSolution(q, values, np.asarray(policy), bound, iterations)


def _check_alpha(alpha: float) -> None:
    if not 0.0 <= alpha < LARGEST:
        raise GxError(f"alpha is {alpha}; give a temperature of 0 or more, below {LARGEST:g}")


def _chain_with_entropy(mdp: TabularMDP, policy: Floats, alpha: float) -> tuple[Rows, Floats]:
    chain, rewards = mdp.markov_chain(policy)
    return chain, rewards + policy_value(np.zeros_like(policy), policy, alpha)


def _iterate(
    mdp: TabularMDP,
    values_of: Callable[[Floats], Floats],
    chain_of: Callable[[Floats], tuple[Rows, Floats]],
    tolerance: float,
    *,
    alpha: float = 0.0,
    follow_above: float = 0.0,
    progress: Progress | None = None,
) -> tuple[Floats, Floats, float, int]:
    """Back up until the certificate meets the tolerance; return q [S, A], values [S], bound, iterations.

    chain_of: q -> `gamma * P_pi` and `R_pi` of the policy to follow after a backup that left more than the
    fraction `follow_above` of the previous interval.
    """
    if not 0.0 < tolerance < math.inf:
        raise GxError(f"tolerance is {tolerance}; give a number above 0")
    gamma = mdp.discount
    gain = gamma / (1.0 - gamma)
    # By then contraction alone has shrunk the first error below rounding: the rest is rounding.
    last_useful = math.ceil(2 * math.log(sys.float_info.epsilon) / math.log(gamma)) + 1 if gamma > 0.0 else 1
    values, previous = np.zeros(mdp.num_states), sys.float_info.max
    for iterations in count(1):
        q = mdp.q_from(values)
        backed_up = values_of(q)
        change = backed_up - values
        low, high = float(change.min()), float(change.max())
        middle = gain * (high + low) / 2.0
        backed_up += middle
        interval = gain * (high - low) / 2.0
        rounding = _rounding(mdp, values, backed_up, alpha) / (1.0 - gamma)
        bound = (interval + rounding) * (1.0 + 1e-12)  # rounding of the bound itself
        if progress is not None:
            progress(iterations, bound)
        if bound <= tolerance:
            q += middle
            return q, backed_up, bound, iterations
        if interval <= rounding or iterations >= last_useful:
            raise GxError(
                f"tolerance {tolerance:g} is finer than float64 can certify for this MDP; "
                f"ask for {3 * bound:.1g} or more"
            )
        slow = interval > follow_above * previous
        values = _follow(*chain_of(q), backed_up, (high - low) * SWEEP_GAIN) if slow else backed_up
        previous = interval
    raise AssertionError("count never ends")


def _follow(chain: Any, rewards: Floats, values: Floats, enough: float) -> Floats:
    """Move values towards those of a policy (`V <- R_pi + gamma * P_pi V`) until changes are nearly alike."""
    direct = isinstance(chain, np.ndarray) and len(values) <= DIRECT_STATES
    for _ in range(SWEEPS_BEFORE_SOLVE if direct else MAX_SWEEPS):
        swept = chain @ values
        swept += rewards
        spread = np.ptp(swept - values)
        values = swept
        if spread <= enough:
            return values
    return np.linalg.solve(np.eye(len(values)) - chain, rewards) if direct else values


def _rounding(mdp: TabularMDP, before: Floats, after: Floats, alpha: float) -> float:
    """Largest error that float64 can make in one backup.

    A sum of n products is off by at most n units of the last place of its largest magnitude. Three sums run
    over the successors (row sum, expected reward, backup), one over the actions; other operations are single.
    """
    operations = 3 * mdp.longest_row + mdp.num_actions + 20
    entropy = alpha * (1.0 + math.log(mdp.num_actions))
    magnitude = mdp.reward_scale + entropy + float(np.abs(before).max() + np.abs(after).max())
    return operations * sys.float_info.epsilon / 2.0 * (magnitude + sys.float_info.min)
