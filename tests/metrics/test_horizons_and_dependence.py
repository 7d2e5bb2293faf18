"""Returns cut at a horizon, and what a policy owes to its guard."""

from types import SimpleNamespace

import numpy as np

from rlpd_gx.metrics.dependence import guard_dependence
from rlpd_gx.metrics.horizons import horizon_truncation
from rlpd_gx.types import Episode, Tally


def test_returns_are_cut_and_short_episodes_count_in_full() -> None:
    found = horizon_truncation([np.ones(10), np.array([5.0])], horizons=(1, 4, 100))
    assert found == {"horizon": [1.0, 4.0, 100.0], "return": [3.0, 4.5, 7.5]}
    late = horizon_truncation([np.array([0.0, 0.0, 9.0])], horizons=(2, 3))
    assert late["return"] == [0.0, 9.0]  # a reward after the horizon does not count


def _played(score: float, events: int, forbidden: int) -> SimpleNamespace:
    episodes = [Episode(score, 10, 0, unsafe_events=events)]
    return SimpleNamespace(episodes=episodes, tally=Tally(proposals=10, forbidden_executed=forbidden))


def test_dependence_is_the_difference_that_the_guard_makes() -> None:
    found = guard_dependence(_played(8.0, 0, 0), _played(3.0, 2, 5))
    assert found["return_added"] == 5
    assert found["unsafe_event_rate_prevented"] == 0.2
    assert (found["forbidden_executed_rate_with_guard"], found["forbidden_executed_rate_without_guard"]) == (
        0,
        0.5,
    )
    careful = guard_dependence(_played(8.0, 0, 0), _played(8.0, 0, 0))
    assert (careful["return_added"], careful["unsafe_event_rate_prevented"]) == (0, 0)
