"""Metrics of whole episodes."""

from collections.abc import Sequence

import numpy as np

from rlpd_gx.types import Episode


def returns(episodes: Sequence[Episode]) -> dict[str, float]:
    """Mean, standard deviation, smallest and largest return."""
    scores = np.array([episode.score for episode in episodes], np.float64)
    return {
        "return_mean": float(scores.mean()),
        "return_std": float(scores.std(ddof=1)) if len(scores) > 1 else 0.0,
        "return_min": float(scores.min()),
        "return_max": float(scores.max()),
    }


def success(episodes: Sequence[Episode]) -> dict[str, float]:
    """Fraction of episodes with at least one successful step, where the environment reports success."""
    steps = [episode.success_steps for episode in episodes if episode.success_steps is not None]
    return {"success_rate": float(np.mean(np.array(steps) > 0))} if steps else {}


def safety(episodes: Sequence[Episode]) -> dict[str, float]:
    """Corrections per proposal; where unsafe events are reported, their rate per step and the share of unsafe episodes.

    Its exact 95% upper bound (Clopper-Pearson) holds for independent episodes of a policy that does not change.
    """
    from scipy.stats import beta

    steps = sum(episode.length for episode in episodes)
    proposals = steps + sum(episode.stopped for episode in episodes)
    found = {"correction_rate": sum(episode.corrections for episode in episodes) / max(proposals, 1)}
    events = [episode.unsafe_events for episode in episodes if episode.unsafe_events is not None]
    if len(events) < len(episodes):
        return found
    unsafe, count = sum(n > 0 for n in events), len(events)
    bound = 1.0 if unsafe >= count else float(beta.ppf(0.95, unsafe + 1, count - unsafe))
    return found | {
        "unsafe_event_rate": sum(events) / max(steps, 1),
        "unsafe_episode_rate": unsafe / count,
        "unsafe_episode_upper_bound_95": bound,
    }
