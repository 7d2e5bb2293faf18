"""Random guarded MDPs, and measured contraction factors of operators on them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rlpd_gx.errors import GxError
from rlpd_gx.theory.mdp import TabularMDP
from rlpd_gx.theory.operators import guarded_max, soft_max
from rlpd_gx.theory.solve import guarded_value_iteration

Floats = NDArray[np.float64]


def random_mdp(
    rng: np.random.Generator,
    num_states: int,
    num_actions: int,
    discount: float,
    *,
    num_successors: int = 5,
    allowed_share: float = 0.5,
) -> TabularMDP:
    """A sparse MDP with random successors, normal rewards, and random safe sets that are never empty."""
    if min(num_states, num_actions, num_successors) < 1:
        raise GxError("a random MDP needs at least one state, one action and one successor")
    num_rows = num_states * num_actions
    probabilities = rng.dirichlet(np.ones(num_successors), size=num_rows)
    successors = rng.integers(num_states, size=num_rows * num_successors)
    starts = np.arange(0, successors.size + 1, num_successors)
    transitions = sparse.csr_array(
        (probabilities.reshape(-1), successors, starts), shape=(num_rows, num_states)
    )
    transitions.sum_duplicates()
    allowed = rng.random((num_states, num_actions)) < allowed_share
    allowed[np.arange(num_states), rng.integers(num_actions, size=num_states)] = True
    rewards = rng.standard_normal((num_states, num_actions))
    return TabularMDP(transitions, rewards, discount, allowed)


def contraction_factor(
    mdp: TabularMDP, values_of: Callable[[Floats], Floats], rng: np.random.Generator, num_pairs: int = 100
) -> float:
    """Largest `|TQ - TQ'| / |Q - Q'|` seen over pairs of q [S, A], in max norms.

    values_of: q [S, A] -> values [S]; `TQ = R + gamma * P values_of(Q)`.
    Random pairs stay far below gamma. So every third pair differs by nearly a constant, where the exact factor is
    gamma, and in every third better actions are raised and worse ones lowered, which exposes operators that are no
    contraction.
    """
    shape = (mdp.num_states, mdp.num_actions)
    largest = 0.0
    for pair in range(num_pairs):
        first = rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 2)
        directions = (
            rng.standard_normal(shape),
            1.0 + 1e-6 * rng.random(shape),
            np.sign(first - first.mean(axis=1, keepdims=True)),
        )
        second = first + 10.0 ** rng.uniform(-3, 1) * directions[pair % 3]
        gap = np.abs(second - first).max()
        moved = np.abs(mdp.q_from(values_of(second)) - mdp.q_from(values_of(first))).max()
        largest = max(largest, float(moved / gap)) if gap > 0 else largest
    return largest


@dataclass(frozen=True)
class Observed:
    """The worst seen of one operator: contraction factor, error of a quick solution, its certified bound."""

    factor: float
    error: float
    bound: float


@dataclass(frozen=True)
class Verification:
    """What was observed of both operators at one discount."""

    gamma: float
    hard: Observed
    soft: Observed

    @property
    def holds(self) -> bool:
        """Whether both contract by gamma (up to the measurement's rounding) and no error passed its bound."""
        kinds = (self.hard, self.soft)
        return all(kind.factor <= self.gamma + 1e-8 and kind.error <= kind.bound for kind in kinds)


def verify_discount(
    rng: np.random.Generator,
    discount: float,
    num_mdps: int,
    num_states: int,
    num_actions: int,
    num_pairs: int,
    alpha: float,
) -> Verification:
    """Observe both operators on random MDPs of one discount."""
    drawn = [random_mdp(rng, num_states, num_actions, discount) for _ in range(num_mdps)]
    return Verification(
        discount, _observe(drawn, rng, num_pairs, 0.0), _observe(drawn, rng, num_pairs, alpha)
    )


def _observe(mdps: list[TabularMDP], rng: np.random.Generator, num_pairs: int, alpha: float) -> Observed:
    factors, quick_runs = [], []
    for mdp in mdps:
        allowed = mdp.allowed

        def values_of(q: Floats, allowed: NDArray[np.bool_] = allowed) -> Floats:
            return soft_max(q, allowed, alpha) if alpha > 0.0 else guarded_max(q, allowed)

        factors.append(contraction_factor(mdp, values_of, rng, num_pairs))
        scale = 1.0 / (1.0 - mdp.discount)  # values are of this size
        quick = guarded_value_iteration(mdp, 1e-3 * scale, alpha=alpha)
        exact = guarded_value_iteration(mdp, 1e-8 * scale, alpha=alpha)
        error = max(np.abs(quick.q - exact.q).max(), np.abs(quick.values - exact.values).max())
        # The reference's own error belongs to the measurement, not to the quick solution.
        quick_runs.append((max(0.0, float(error) - exact.error_bound), quick.error_bound))
    error, bound = max(quick_runs, key=lambda run: run[0] / run[1])
    return Observed(max(factors), error, bound)
