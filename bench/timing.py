"""Contenders take turns: what a busy machine does to one, it does to all. Only ratios within a run mean something."""

import gc
import random
import time
from collections.abc import Callable, Mapping

import numpy as np


def interleaved(calls: Mapping[str, Callable[[], object]], rounds: int = 15) -> dict[str, np.ndarray]:
    """CPU seconds of each call in each round, all threads of the process together; the first round warms up.

    The CPU's clock is used because other processes disturb it less than that on the wall.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    shuffle = random.Random(0)
    gc.disable()
    for turn in range(rounds + 1):
        for name, call in shuffle.sample(list(calls.items()), len(calls)):
            start = time.process_time()
            call()
            if turn:
                seconds[name].append(time.process_time() - start)
    gc.enable()
    return {name: np.array(times) for name, times in seconds.items()}


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> float:
    """The median over rounds of the ratio within a round."""
    return float(np.median(numerator / denominator))


def spread(seconds: np.ndarray, unit: float) -> str:
    """Median and quartiles."""
    low, middle, high = np.quantile(seconds, [0.25, 0.5, 0.75]) / unit
    digits = 2 if middle < 10 else 1 if middle < 100 else 0
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def verdict(value: float, *, most: float | None = None, least: float | None = None) -> str:
    """Whether a target is met, with the target."""
    if most is not None:
        return f"{'met' if value <= most else 'MISSED'} (at most {most:g})"
    return f"{'met' if value >= least else 'MISSED'} (at least {least:g})"
