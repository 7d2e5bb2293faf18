"""Value estimates: TD error, ensemble variance and optimism on fixed states; collapse of an evaluation curve."""

import numpy as np
import numpy.typing as npt

from rlpd_gx.metrics.subject import Found, Subject, Unavailable
from rlpd_gx.types import Array

TAIL = 0.05  # a Monte-Carlo return may leave out this share of the discounted future


def td_error(q: Array, target: Array) -> dict[str, float]:
    """Mean |Q - target| over critics and states, and its ratio to mean |target|; q [N, B], target [B]."""
    error = float(np.abs(q - target).mean())
    return {"td_error": error, "td_error_scaled": error / _scale(target)}


def q_variance(q: Array) -> dict[str, float]:
    """Mean variance over the ensemble, and its ratio to the squared mean |Q|; q [N, B]."""
    variance = float(q.var(axis=0).mean())
    return {"q_variance": variance, "q_variance_scaled": variance / _scale(q) ** 2}


def optimism(q: Array, returns: Array) -> dict[str, float]:
    """Mean Q minus Monte-Carlo return over states [B], and its ratio to mean |return|; NaN returns are left out."""
    known = ~np.isnan(returns)
    if not known.any():
        raise Unavailable(
            f"every episode was cut where more than {TAIL:.0%} of the discounted return was still to come"
        )
    difference = float((q[known] - returns[known]).mean())
    return {"optimism": difference, "optimism_scaled": difference / _scale(returns[known])}


def monte_carlo(rewards: npt.ArrayLike, gamma: float, *, terminated: bool) -> Array:
    """Discounted return [T] from each step of an episode; NaN where a truncation hides more than 5% of it."""
    found = np.asarray(rewards, np.float64).copy()
    for step in range(len(found) - 2, -1, -1):
        found[step] += gamma * found[step + 1]
    if not terminated:
        found[gamma ** np.arange(len(found), 0, -1) > TAIL] = np.nan
    return found


def collapse(curve: npt.ArrayLike) -> dict[str, float]:
    """Maximum drawdown of an evaluation curve [k]: the largest fall below an earlier peak, and as a share of a peak.

    A share of the curve's range would be near 1 for every curve that only has noise. Peaks of 0 or less have no share.
    """
    values = np.asarray(curve, np.float64)
    peaks = np.maximum.accumulate(values)
    falls = peaks - values
    shares = falls[peaks > 0] / peaks[peaks > 0]
    return {
        "collapse": float(falls.max(initial=0.0)),
        "collapse_share": float(shares.max(initial=0.0)),
    }


def _scale(values: Array) -> float:
    return max(float(np.abs(values).mean()), 1e-8)


def probe_values(subject: Subject) -> Found:
    """TD error and ensemble variance on the probe set."""
    found = subject.probe()
    return {**td_error(found.q, found.target), **q_variance(found.q)}


def value_optimism(subject: Subject) -> Found:
    """Q minus Monte-Carlo guarded return on evaluation states."""
    return {**optimism(*subject.values_and_returns())}


def evaluation_collapse(subject: Subject) -> Found:
    """Maximum drawdown over the evaluations of a run."""
    return {**collapse(subject.evaluation_curve())}
