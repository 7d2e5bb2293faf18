"""What a policy proposes before any guard corrects it: violations, near misses, critical states, margin scans."""

from collections.abc import Callable, Sequence

import numpy as np

from rlpd_gx.metrics.subject import Found, Subject
from rlpd_gx.safe_sets import Mask, SafeSet
from rlpd_gx.types import Array, Tally

DELTAS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # in the units of the rules


def proposals(tally: Tally) -> dict[str, float]:
    """Shares of proposed actions that break a rule, and that keep it by less than the near-miss margin."""
    rates = tally.rates()
    return {
        "pre_guard_violation_rate": rates["forbidden_proposals_rate"],
        "near_miss_rate": rates["near_misses_rate"],
        "near_miss_executed_rate": rates["near_misses_executed_rate"],
    }


def critical(safe_sets: Sequence[SafeSet | None], actions: Array) -> Array:
    """[B] bool: states whose complete safe set has both allowed and forbidden actions.

    A finite set shows it; a set in a box is tried at `actions` [k, ...], such as the corners and uniform draws.
    """

    def split(safe_set: SafeSet | None) -> bool:
        if safe_set is None:
            return False
        if isinstance(safe_set, Mask):
            return bool((safe_set.tested & ~safe_set.allowed).any() and safe_set.allowed.any())
        inside = np.asarray(safe_set.contains(actions))
        return bool(not inside.all() and not safe_set.nearest(actions[0]).empty)

    return np.array([split(safe_set) for safe_set in safe_sets], bool)


def margin_scan(least_margin: Callable[[float], Array], deltas: Sequence[float]) -> dict[str, list[float]]:
    """Share of critical states where the policy's own action stays allowed, as a curve over delta.

    `least_margin(delta)` [B] is the margin of the proposals under rules shifted inwards by delta.
    """
    allowed = [float((np.asarray(least_margin(delta)) >= 0).mean()) for delta in deltas]
    return {"delta": [float(delta) for delta in deltas], "allowed_share": allowed}


def shadow(subject: Subject) -> Found:
    """Pre-guard violation and near-miss rates of the evaluation episodes."""
    return {**proposals(subject.played().tally)}


def scan(subject: Subject) -> Found:
    """The margin scan on critical states."""
    return {**margin_scan(subject.margins_on_critical_states, DELTAS)}
