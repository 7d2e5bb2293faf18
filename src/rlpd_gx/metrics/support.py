"""How far a policy leaves the offline data, seen through a clone of the behaviour policy."""

import numpy as np

from rlpd_gx.metrics.subject import Found, Subject, Unavailable
from rlpd_gx.types import Array

PERCENTILE = 5.0
FLOOR = 0.01  # share of a uniform policy mixed into the clone, so that no probability is 0


def action_novelty(policy_actions: Array, held_out_actions: Array) -> float:
    """Share of visited states where the policy's action is unusual for the behaviour clone.

    Both are clone probabilities (or densities) [B]: of the policy's actions, and of held-out offline actions, whose
    5th percentile is the threshold.
    """
    return float((policy_actions < np.percentile(held_out_actions, PERCENTILE)).mean())


def support_kl(policy: Array, clone: Array, floor: float = FLOOR) -> float:
    """Mean KL(policy, clone) over states, in nats; probabilities [B, n], the clone mixed with a uniform floor."""
    mixed = (1 - floor) * clone + floor / clone.shape[-1]
    safe = np.where(policy > 0, policy, 1.0)
    return float((policy * (np.log(safe) - np.log(mixed))).sum(axis=-1).mean())


def support_kl_sampled(
    log_policy: Array, log_clone: Array, log_uniform: float, floor: float = FLOOR
) -> float:
    """The same for continuous actions, from log densities [K, B] at K actions sampled from the policy."""
    mixed = np.logaddexp(np.log1p(-floor) + log_clone, np.log(floor) + log_uniform)
    return float((log_policy - mixed).mean())


def novelty(subject: Subject) -> Found:
    """Action novelty rate on the states of the evaluation episodes."""
    found = subject.support()
    return {"action_novelty_rate": action_novelty(found.of_policy, found.held_out)}


def divergence(subject: Subject) -> Found:
    """Support KL on the states of the evaluation episodes."""
    if (kl := subject.support().kl) is None:
        raise Unavailable(
            "this policy gives actions without probabilities, or its joint actions are too many to list"
        )
    return {"support_kl": kl}
