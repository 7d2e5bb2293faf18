"""Time to the first unsafe event, against lifelines and by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter
from lifelines.utils import restricted_mean_survival_time

from rlpd_gx.metrics import survival


def test_by_hand() -> None:
    # 4 replays: events at 2 and 4, cut at 3 and 5. S = 3/4 after 2, 3/4 * 1/2 after 4.
    curve = survival.kaplan_meier([2, 3, 4, 5], [True, False, True, False])
    assert curve.time.tolist() == [0, 2, 4]
    assert curve.share.tolist() == [1, 0.75, 0.375]
    assert survival.median(curve) == 4
    assert survival.restricted_mean(curve, 5) == pytest.approx(2 + 2 * 0.75 + 1 * 0.375)
    found = survival.ttfv([2, 3, 4, 5], [True, False, True, False], 5)
    assert found["ttfv_event_share"] == 0.5


def test_censored_replays_are_not_events() -> None:
    """The check can fail: the mean of the times, or cut replays counted as events, say something else."""
    times, events = np.array([1, 10, 10, 10]), np.array([True, False, False, False])
    curve = survival.kaplan_meier(times, events)
    assert survival.median(curve) == np.inf
    assert survival.median(survival.kaplan_meier(times, np.ones(4, bool))) == 10
    assert survival.restricted_mean(curve, 20) == 1 + 19 * 0.75 != times.mean()


@pytest.mark.parametrize("count", range(2, 80, 2))
def test_half_is_half_however_it_was_rounded(count: int) -> None:
    times = np.arange(1, count + 1)
    assert survival.median(survival.kaplan_meier(times, times <= count // 2)) == count // 2


def test_nothing_is_counted_beyond_the_longest_replay() -> None:
    found = survival.ttfv([2_000, 1_500], [False, False], 12_000)
    assert found["ttfv_restricted_mean"] == found["ttfv_followed"] == 2_000
    assert survival.ttfv([1, 12_000], [True, False], 12_000)["ttfv_followed"] == 12_000
    # where every replay had its event, the longest one is no limit
    times = [3, 5]
    assert survival.ttfv(times, [True, True], 100)["ttfv_restricted_mean"] == np.mean(times)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 12),
)
def test_the_same_as_lifelines(replays: list[tuple[int, bool]], horizon: int) -> None:
    times, events = zip(*replays, strict=True)
    ours = survival.kaplan_meier(times, events)
    theirs = KaplanMeierFitter().fit(times, events)
    expected = theirs.predict(ours.time)
    np.testing.assert_allclose(ours.share, np.atleast_1d(expected), atol=1e-12)
    if not np.isclose(ours.share, 0.5, atol=1e-9).any():  # at exactly one half, rounding decides
        assert survival.median(ours) == theirs.median_survival_time_
    assert survival.restricted_mean(ours, horizon) == pytest.approx(
        restricted_mean_survival_time(theirs, t=horizon), abs=1e-9
    )


def test_times_without_flags_are_refused() -> None:
    with pytest.raises(ValueError, match="one event flag for each time"):
        survival.kaplan_meier([1, 2], [True])
