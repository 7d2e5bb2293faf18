"""Time to the first unsafe event (TTFV) from episodes that may end, or be cut, before one happens."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlpd_gx.metrics.subject import Found, Subject
from rlpd_gx.types import Array


class Survival(NamedTuple):
    """The Kaplan-Meier estimate: `share` [k] survives beyond `time` [k]; time 0 comes first, with share 1."""

    time: Array
    share: Array


def kaplan_meier(times: npt.ArrayLike, events: npt.ArrayLike) -> Survival:
    """Survival from times [n] and whether an event ended each (True) or it was only observed that long (False)."""
    when, happened = np.asarray(times, np.float64), np.asarray(events, bool)
    if when.shape != happened.shape or when.ndim != 1 or not len(when):
        raise ValueError(f"give one event flag for each time; got shapes {when.shape} and {happened.shape}")
    moments = np.unique(when[happened])
    at_risk = (when[None] >= moments[:, None]).sum(axis=1)
    died = ((when[None] == moments[:, None]) & happened[None]).sum(axis=1)
    share = np.cumprod(1 - died / at_risk)
    return Survival(np.concatenate([[0.0], moments]), np.concatenate([[1.0], share]))


def median(survival: Survival) -> float:
    """The first time by which half have had an event; infinite where more than half never did."""
    below = survival.share <= 0.5 + 1e-9  # half is half, however the product was rounded
    return float(survival.time[below][0]) if below.any() else float("inf")


def restricted_mean(survival: Survival, horizon: float) -> float:
    """Mean event-free time up to a horizon: the area under the curve."""
    inside = survival.time < horizon
    edges = np.append(survival.time[inside], horizon)
    return float((np.diff(edges) * survival.share[inside]).sum())


def ttfv(times: npt.ArrayLike, events: npt.ArrayLike, horizon: float) -> dict[str, float]:
    """Kaplan-Meier median, restricted mean and the share that had an event.

    Nothing is known beyond the longest replay, so the mean is restricted to that where it is below the horizon.
    """
    curve, followed = kaplan_meier(times, events), min(horizon, float(np.max(times)))
    return {
        "ttfv_median": median(curve),
        "ttfv_restricted_mean": restricted_mean(curve, followed),
        "ttfv_followed": followed,
        "ttfv_event_share": float(np.mean(np.asarray(events, bool))),
    }


def from_critical_states(subject: Subject) -> Found:
    """TTFV with the guard and without it."""
    found: Found = {}
    for name, guarded in (("with_guard", True), ("without_guard", False)):
        times = subject.first_events(guarded=guarded)
        found |= {f"{key}_{name}": value for key, value in ttfv(*times, subject.horizon).items()}
    return found | {"replays": len(times.steps), "horizon": subject.horizon}
