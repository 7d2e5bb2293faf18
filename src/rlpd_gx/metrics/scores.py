"""Aggregates of normalised scores over tasks and seeds, with intervals."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rlpd_gx.metrics.atari100k import RANDOM_AND_HUMAN
from rlpd_gx.metrics.subject import Found, Subject, Unavailable

Runs = Mapping[str, Sequence[float]]  # task -> the score of each seed
Aggregate = Callable[[NDArray[np.float64]], float]


def normalised(score: float, random: float, human: float) -> float:
    """(score - random) / (human - random)."""
    return (score - random) / (human - random)


def normalised_atari(game: str, score: float) -> float:
    """The human-normalised score of a game of Atari-100k."""
    return normalised(score, *RANDOM_AND_HUMAN[game])


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


LEAST_SEEDS = 5  # below that, an interval claims more than the runs can carry
AGGREGATES: dict[str, Aggregate] = {"mean": mean, "median": median, "iqm": iqm}


def summary(
    runs: Runs, generator: np.random.Generator, resamples: int = 2_000
) -> dict[str, dict[str, object]]:
    """Mean, median and IQM of normalised scores: over all tasks, and apart where the agent is above 1 and below.

    An interval stands beside them where every task has five seeds or more; otherwise only the points are given.
    """
    above = {task for task, scores in runs.items() if np.mean(scores) >= 1}
    groups: dict[str, Runs] = {
        "all": runs,
        "agent_optimal": {task: scores for task, scores in runs.items() if task in above},
        "human_optimal": {task: scores for task, scores in runs.items() if task not in above},
    }
    found: dict[str, dict[str, object]] = {}
    for name, group in groups.items():
        found[name] = {"tasks": len(group), "points": {task: list(scores) for task, scores in group.items()}}
        if not group:
            continue
        fewest = min(map(len, group.values()))
        table = np.stack([np.asarray(scores, np.float64)[:fewest] for scores in group.values()])
        for label, aggregate in AGGREGATES.items():
            found[name][label] = aggregate(table)
            if fewest >= LEAST_SEEDS:
                found[name][f"{label}_interval"] = bootstrap(group, aggregate, generator, resamples)
    return found


def atari_score(subject: Subject) -> Found:
    """Score and human-normalised score of the evaluation episodes of an Atari game."""
    if subject.game not in RANDOM_AND_HUMAN:
        raise Unavailable("only the 26 games of Atari-100k have scores of a random policy and of a human")
    score = float(np.mean([episode.score for episode in subject.played().episodes]))
    return {"score": score, "normalised_score": normalised_atari(subject.game, score)}
