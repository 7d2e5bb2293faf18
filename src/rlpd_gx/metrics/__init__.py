"""Measurements: pure functions on records.

A metric is a function from finished episodes to named numbers. Ours are in `METRICS`; anybody's is `module:function`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from rlpd_gx.errors import GxError
from rlpd_gx.loading import load
from rlpd_gx.metrics.episodes import returns, safety, success
from rlpd_gx.types import Episode

Metric = Callable[[Sequence[Episode]], Mapping[str, float]]
METRICS: dict[str, Metric] = {"returns": returns, "safety": safety, "success": success}

__all__ = ["METRICS", "Metric", "find", "measure"]


def find(name: str) -> Metric:
    """The metric of this name: one of ours, or `module:function` of your own."""
    if name in METRICS:
        return METRICS[name]
    if ":" not in name:
        raise GxError(f"there is no metric {name!r}; there are {', '.join(METRICS)}, or give module:function")
    metric = load(name, "metric")[0]
    if not callable(metric):
        raise GxError(
            f"--metric {name} is a {type(metric).__name__}; it must be a function of a list of episodes"
        )
    return metric


def measure(episodes: Sequence[Episode], names: Iterable[str] = tuple(METRICS)) -> dict[str, float]:
    """The numbers of several metrics together."""
    return {name: value for metric in names for name, value in find(metric)(episodes).items()}
