"""What a state is worth given q [S, A], and the policies that achieve it; forbidden actions never count.

Each of these is monotone, and raising q by a constant raises the value by the same constant. Followed by
`R + gamma * P V` that makes a gamma-contraction in the max norm, which is all that the certificate in `solve` needs.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr

from rlpd_gx.errors import GxError
from rlpd_gx.theory.rows import SUM_TOLERANCE

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def guarded_max(q: Floats, allowed: Mask) -> Floats:
    """`max over A_safe(s) of q(s, a)`: values [S]."""
    return np.asarray(np.where(allowed, q, -np.inf).max(axis=1))


def greedy_policy(q: Floats, allowed: Mask) -> NDArray[np.int64]:
    """The best allowed action of each state [S]; ties go to the lowest id."""
    return np.where(allowed, q, -np.inf).argmax(axis=1)


def soft_max(q: Floats, allowed: Mask, alpha: float) -> Floats:
    """`alpha * log(sum over A_safe(s) of exp(q(s, a) / alpha))`: values [S]."""
    best, weights = _boltzmann(q, allowed, alpha)
    return np.asarray(best + alpha * np.log(weights.sum(axis=1)))


def soft_policy(q: Floats, allowed: Mask, alpha: float) -> Floats:
    """Probabilities [S, A] proportional to `exp(q / alpha)` on the safe set: the policy worth `soft_max`."""
    _, weights = _boltzmann(q, allowed, alpha)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def _boltzmann(q: Floats, allowed: Mask, alpha: float) -> tuple[Floats, Floats]:
    """Best allowed q [S], and exp((q - best) / alpha) [S, A] with exact zeros on forbidden actions."""
    weights = np.where(allowed, q, -np.inf)
    best = weights.max(axis=1)
    weights -= best[:, None]
    with np.errstate(over="ignore"):  # a tiny alpha sends inferior actions to -inf, whose exp is the right 0
        weights /= alpha
    np.exp(weights, out=weights)
    return best, weights


def policy_value(q: Floats, policy: Floats, alpha: float = 0.0) -> Floats:
    """`E_pi[q] + alpha * H(pi)`: values [S] of a stochastic policy [S, A]."""
    values = np.einsum("sa,sa->s", policy, q)
    if alpha > 0.0:
        values += alpha * entr(policy).sum(axis=1)
    return values


def as_probabilities(policy: ArrayLike, shape: tuple[int, int]) -> Floats:
    """A policy as probabilities [S, A], from those or from one action per state [S]."""
    given = np.asarray(policy)
    if given.dtype.kind in "iu" and given.shape == shape[:1]:
        wrong = (given < 0) | (given >= shape[1])
        if wrong.any():
            state = int(np.argmax(wrong))
            raise GxError(
                f"the policy takes action {given[state]} in state {state}; actions are 0 to {shape[1] - 1}"
            )
        return np.asarray(np.arange(shape[1])[None, :] == given[:, None], dtype=np.float64)
    if given.dtype.kind not in "fiu" or given.shape != shape:
        raise GxError(
            f"the policy has shape {given.shape} and holds {given.dtype}; "
            f"give probabilities [S, A] = {shape} or whole numbers [S] = {shape[:1]}"
        )
    if not (given >= 0).all():
        state, action = np.argwhere(~(given >= 0))[0]
        raise GxError(
            f"the policy's probability of action {action} in state {state} is {given[state, action]}; "
            "probabilities must be zero or more"
        )
    sums = given.sum(axis=1, dtype=np.float64, keepdims=True)
    off = ~(np.abs(sums[:, 0] - 1.0) <= SUM_TOLERANCE)
    if off.any():
        state = int(np.argmax(off))
        raise GxError(
            f"the policy's probabilities in state {state} sum to {sums[state, 0]:.9g}, not 1; normalise them"
        )
    return given / sums


def renormalise(policy: ArrayLike, allowed: Mask) -> Floats:
    """`pi_safe`: probabilities [S, A] restricted to the safe sets and scaled to sum to one."""
    safe = np.where(allowed, as_probabilities(policy, allowed.shape), 0.0)
    mass = safe.sum(axis=1, keepdims=True)
    if not mass.all():
        state = int(np.argmin(mass[:, 0]))
        raise GxError(
            f"the policy gives no probability to any allowed action of state {state}, "
            "so it cannot be renormalised there; give one of them some"
        )
    return safe / mass
