"""Aggregates of normalised scores over tasks and seeds, with intervals."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Runs = Mapping[str, Sequence[float]]  # task -> the score of each seed
Aggregate = Callable[[NDArray[np.float64]], float]


def normalised(score: float, random: float, human: float) -> float:
    """(score - random) / (human - random)."""
    return (score - random) / (human - random)


def mean(scores: NDArray[np.float64]) -> float:
    """Mean over tasks of the mean over seeds; scores [tasks, seeds]."""
    return float(scores.mean())


def median(scores: NDArray[np.float64]) -> float:
    """Median over tasks of the mean over seeds; scores [tasks, seeds]."""
    return float(np.median(scores.mean(axis=1)))


def iqm(scores: NDArray[np.float64]) -> float:
    """Interquartile mean of all runs; scores [tasks, seeds]."""
    from scipy.stats import trim_mean

    return float(trim_mean(scores.ravel(), 0.25))


def bootstrap(
    runs: Runs, aggregate: Aggregate, generator: np.random.Generator, resamples: int = 2_000
) -> tuple[float, float]:
    """95% interval of an aggregate: seeds are resampled within each task (stratified)."""
    tasks = [np.asarray(scores, np.float64) for scores in runs.values()]
    fewest = min(map(len, tasks))
    if fewest < 2:
        raise ValueError("an interval needs two seeds or more for every task")
    samples = np.stack([generator.choice(task, (resamples, fewest)) for task in tasks], axis=1)
    drawn = [aggregate(sample) for sample in samples]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)
