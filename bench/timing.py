"""Contenders take turns: what a busy machine does to one, it does to all. Only ratios within a run mean something."""

import gc
import json
import os
import platform
import random
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np


def interleaved(calls: Mapping[str, Callable[[], object]], rounds: int = 15) -> dict[str, np.ndarray]:
    """CPU seconds of each call in each round, all threads of the process together; the first round warms up.

    The CPU's clock is used because other processes disturb it less than that on the wall.
    """

    def timed(call: Callable[[], object]) -> float:
        start = time.process_time()
        call()
        return time.process_time() - start

    gc.disable()
    seconds = in_turns({name: partial(timed, call) for name, call in calls.items()}, rounds)
    gc.enable()
    return seconds


def in_turns(timers: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, np.ndarray]:
    """What each timer returns in each round; the order changes, and the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    shuffle = random.Random(0)
    for turn in range(rounds + 1):
        for name, timer in shuffle.sample(list(timers.items()), len(timers)):
            value = timer()
            if turn:
                seconds[name].append(value)
    return {name: np.array(times) for name, times in seconds.items()}


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> float:
    """The median over rounds of the ratio within a round."""
    return float(np.median(numerator / denominator))


def spread(seconds: np.ndarray, unit: float) -> str:
    """Median and quartiles."""
    low, middle, high = np.quantile(seconds, [0.25, 0.5, 0.75]) / unit
    digits = 2 if middle < 10 else 1 if middle < 100 else 0
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def verdict(value: float, what: str, *, most: float | None = None, least: float | None = None) -> str:
    """Whether a target is met, with the target; `keep` writes it down beside `what` was measured."""
    bound = most if most is not None else least
    assert bound is not None
    met = value <= bound if most is not None else value >= bound
    target = f"at {'most' if most is not None else 'least'} {bound:g}"
    _answers.append({"what": what, "measured": float(f"{value:.3g}"), "target": target, "met": bool(met)})
    return f"{'met' if met else 'MISSED'} ({target})"


_answers: list[dict[str, object]] = []
ANSWERS = Path("results/bench.json")


def keep(part: str) -> None:
    """Write the answers of one part to results/bench.json; the other parts keep theirs."""
    known = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    command = ["git", "rev-parse", "--short", "HEAD"]
    known[part] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown",
        "machine": f"{machine()}, load {os.getloadavg()[0]:.1f}",
        "answers": _answers,
    }
    ANSWERS.write_text(json.dumps(known, indent=1) + "\n")


def machine() -> str:
    """Processor and cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} cores"
