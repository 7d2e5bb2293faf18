"""Metrics of episodes, against numbers worked out by hand; and one that a user brings."""

import pytest
from scipy.stats import binom

from rlpd_gx import metrics
from rlpd_gx.errors import GxError
from rlpd_gx.types import Episode

EPISODES = [
    Episode(score=1.0, length=10, corrections=2, unsafe_events=0, success_steps=0),
    Episode(score=5.0, length=30, corrections=0, unsafe_events=3, success_steps=4),
]


def test_known_answers() -> None:
    found = metrics.measure(EPISODES)
    assert found["return_mean"] == 3.0
    assert found["return_std"] == pytest.approx(8**0.5)
    assert (found["return_min"], found["return_max"], found["success_rate"]) == (1.0, 5.0, 0.5)
    assert (found["correction_rate"], found["unsafe_event_rate"]) == (2 / 40, 3 / 40)
    assert found["unsafe_episode_rate"] == 0.5


@pytest.mark.parametrize(("unsafe", "count"), [(0, 1), (0, 20), (3, 20), (19, 20)])
def test_the_bound_is_where_so_few_events_become_unlikely(unsafe: int, count: int) -> None:
    episodes = [Episode(0.0, 1, 0, unsafe_events=int(i < unsafe)) for i in range(count)]
    bound = metrics.METRICS["safety"](episodes)["unsafe_episode_upper_bound_95"]
    assert binom.cdf(unsafe, count, bound) == pytest.approx(0.05, abs=1e-9)


def test_all_unsafe_has_no_bound_below_one() -> None:
    assert metrics.METRICS["safety"]([Episode(0.0, 1, 0, 1)] * 4)["unsafe_episode_upper_bound_95"] == 1.0


def test_where_success_is_never_reported_there_is_no_rate() -> None:
    assert metrics.METRICS["success"]([Episode(0.0, 1, 0, 0)]) == {}


def test_a_metric_from_outside_the_package(tmp_path, monkeypatch) -> None:
    (tmp_path / "longest_of_mine.py").write_text(
        "def longest(episodes):\n    return {'longest': max(e.length for e in episodes)}\n\nnumber = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert metrics.measure(EPISODES, ["longest_of_mine:longest"]) == {"longest": 30}
    with pytest.raises(GxError, match="must be a function"):
        metrics.find("longest_of_mine:number")
    with pytest.raises(GxError, match="there is no metric 'nothing'"):
        metrics.find("nothing")
