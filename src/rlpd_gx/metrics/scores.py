"""Aggregates of normalised scores over tasks and seeds, with intervals."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpd_gx.metrics.atari100k import RANDOM_AND_HUMAN
from rlpd_gx.metrics.subject import Found, Subject, Unavailable

Runs = Mapping[str, Sequence[float]]  # task -> the score of each seed
Scores = NDArray[np.float64]  # [..., tasks, seeds]
Aggregate = Callable[[Scores], Scores]
SEEDS_FOR_A_CLAIM = 5  # below that, an interval claims more than the runs can carry


def normalised(score: float, random: float, human: float) -> float:
    """(score - random) / (human - random)."""
    return (score - random) / (human - random)


def normalised_atari(game: str, score: float) -> float:
    """The human-normalised score of a game of Atari-100k."""
    return normalised(score, *RANDOM_AND_HUMAN[game])


def mean(scores: Scores) -> Scores:
    """Mean over tasks of the mean over seeds."""
    return scores.mean(axis=(-2, -1))


def median(scores: Scores) -> Scores:
    """Median over tasks of the mean over seeds."""
    return np.median(scores.mean(axis=-1), axis=-1)


def iqm(scores: Scores) -> Scores:
    """Interquartile mean of all runs."""
    from scipy.stats import trim_mean

    return trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1)


def bootstrap(
    runs: Runs, aggregate: Aggregate, generator: np.random.Generator, resamples: int = 2_000
) -> tuple[float, float]:
    """95% interval of an aggregate: seeds are resampled within each task (stratified); see `central`."""
    tasks = [np.asarray(scores, np.float64) for scores in runs.values()]
    fewest = min(map(len, tasks))
    if fewest < 2:
        raise ValueError("an interval needs two seeds or more for every task")
    samples = np.stack([generator.choice(task, (resamples, fewest)) for task in tasks], axis=1)
    return central(aggregate(samples), fewest, len(tasks) * (fewest - 1))


def central(drawn: Scores, seeds: int, freedom: int) -> tuple[float, float]:
    """The 95% interval of resampled estimates, widened for few seeds.

    Resamples of n seeds spread sqrt((n - 1) / n) times as far as they should, and from five seeds the spread itself is
    uncertain: so the quantiles lie where Student's t with this many degrees of freedom has them (Hesterberg, 2015).
    """
    from scipy.stats import norm, t

    tail = norm.cdf(-np.sqrt(seeds / (seeds - 1)) * t.ppf(0.975, freedom))
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high)


AGGREGATES: dict[str, Aggregate] = {"mean": mean, "median": median, "iqm": iqm}


def summary(runs: Runs, generator: np.random.Generator, resamples: int = 2_000) -> dict[str, dict[str, Any]]:
    """Mean, median and IQM of normalised scores: over all tasks, and apart where the agent is above 1 and below.

    An interval stands beside them where every task has five seeds or more; otherwise only the points are given.
    """
    above = {task for task, scores in runs.items() if np.mean(scores) >= 1}
    groups: dict[str, Runs] = {
        "all": runs,
        "agent_optimal": {task: scores for task, scores in runs.items() if task in above},
        "human_optimal": {task: scores for task, scores in runs.items() if task not in above},
    }
    found: dict[str, dict[str, Any]] = {}
    for name, group in groups.items():
        found[name] = {"tasks": len(group), "points": {task: list(scores) for task, scores in group.items()}}
        if not group:
            continue
        fewest = min(map(len, group.values()))
        table = np.stack([np.asarray(scores, np.float64)[:fewest] for scores in group.values()])
        for label, aggregate in AGGREGATES.items():
            found[name][label] = float(aggregate(table))
            if fewest >= SEEDS_FOR_A_CLAIM:
                found[name][f"{label}_interval"] = bootstrap(group, aggregate, generator, resamples)
    return found


def atari_score(subject: Subject) -> Found:
    """Score and human-normalised score of the evaluation episodes of an Atari game."""
    if subject.game not in RANDOM_AND_HUMAN:
        raise Unavailable("only the 26 games of Atari-100k have scores of a random policy and of a human")
    score = float(np.mean([episode.score for episode in subject.played().episodes]))
    return {"score": score, "normalised_score": normalised_atari(subject.game, score)}
