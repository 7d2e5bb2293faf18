"""Measurements: pure functions on records.

A metric is a function from finished episodes to named numbers; ours are in `METRICS`. A measurement may ask more of the
policy (`subject.Subject`); ours are in `MEASUREMENTS`. Anybody's is `module:function`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rlpd_gx.errors import GxError, refuse_text
from rlpd_gx.loading import load
from rlpd_gx.metrics import dependence, exploration, horizons, proposals, scores, support, survival, values
from rlpd_gx.metrics.episodes import returns, safety, success
from rlpd_gx.metrics.subject import Found, Subject, Unavailable
from rlpd_gx.types import Episode

Metric = Callable[[Sequence[Episode]], Mapping[str, float]]
Measurement = Callable[[Subject], Found]
METRICS: dict[str, Metric] = {"returns": returns, "safety": safety, "success": success}
MEASUREMENTS: dict[str, Measurement] = {
    "values": values.probe_values,
    "optimism": values.value_optimism,
    "collapse": values.evaluation_collapse,
    "proposals": proposals.shadow,
    "margin-scan": proposals.scan,
    "ttfv": survival.from_critical_states,
    "exploration": exploration.exploration,
    "novelty": support.novelty,
    "support-kl": support.divergence,
    "horizons": horizons.cut_returns,
    "dependence": dependence.dependence,
    "scores": scores.atari_score,
}

__all__ = ["MEASUREMENTS", "METRICS", "Measurement", "Metric", "find", "find_measurement", "measure"]


def find(name: str) -> Metric:
    """The metric of this name: one of ours, or `module:function` of your own."""
    if name in METRICS:
        return METRICS[name]
    return _outside(name, (*METRICS,), "a list of episodes")


def find_measurement(name: str) -> Measurement:
    """The measurement of this name; a metric measures the guarded episodes. `module:function` is given the subject."""
    if name in MEASUREMENTS:
        return MEASUREMENTS[name]
    if name in METRICS:
        return lambda subject: _of_episodes(name, subject)
    return _outside(name, (*METRICS, *MEASUREMENTS), "a subject (docs/measurements.md)")


def measure(episodes: Sequence[Episode], names: Iterable[str] = tuple(METRICS)) -> dict[str, float]:
    """The numbers of several metrics together."""
    refuse_text(names, "names")
    return {name: value for metric in names for name, value in find(metric)(episodes).items()}


def measure_subject(subject: Subject, names: Iterable[str]) -> dict[str, Found | str]:
    """What each measurement found, or the sentence that says why it could not be made."""
    found: dict[str, Found | str] = {}
    for name, measurement in {name: find_measurement(name) for name in names}.items():
        try:
            found[name] = measurement(subject)
        except Unavailable as reason:
            found[name] = str(reason)
    return found


def _of_episodes(name: str, subject: Subject) -> Found:
    found = METRICS[name](subject.played().episodes)
    if not found:
        raise Unavailable(f"the environment does not report {name}")
    return {**found}


def _outside(name: str, ours: Sequence[str], argument: str) -> Callable[..., Any]:
    if ":" not in name:
        raise GxError(f"there is no metric {name!r}; there are {', '.join(ours)}, or give module:function")
    metric = load(name, "metric")[0]
    if not callable(metric):
        raise GxError(f"--metric {name} is a {type(metric).__name__}; it must be a function of {argument}")
    return metric
