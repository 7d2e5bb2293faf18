"""Several processes resume one run folder at once: exactly one does, the others get one sentence with its number."""

import shutil
import time
from pathlib import Path
from typing import Any

from rlpd_gx.loop.resume import resume
from rlpd_gx.loop.train import Trainer
from torture import Row
from torture._runs import DONE, REFUSED, Bench, begin, differences, half, in_process, wait

PROCESSES = 4
PATIENCE_SECONDS = 60.0


def run(seconds: float, seed: int) -> list[Row]:
    """Resume one folder from several processes."""
    row = Row(f"of {PROCESSES} processes that resume one run, exactly one writes, and the result is the same")
    with Bench(seed) as bench:
        stopped = {kind: bench.folder / f"half-{kind}" for kind in bench.whole}
        for kind, folder in stopped.items():
            in_process(half, folder, kind, 14)
        for number, kind, folder in bench.trials(seconds):
            shutil.copytree(stopped[kind], folder)
            signs = bench.folder / f"signs-{number}"
            signs.mkdir()
            endings = [wait(p) for p in [begin(together, folder, signs, i) for i in range(PROCESSES)]]
            won = [i for i, ending in enumerate(endings) if ending.code == DONE]
            refused = [e.said for e in endings if e.code == REFUSED and "is writing this run" in e.said]
            problem = (
                "" if len(won) == 1 and len(refused) == PROCESSES - 1 else f"{[e.said for e in endings]}"
            )
            if not problem and (wrong := differences(folder, bench.whole[kind])):
                problem = f"{', '.join(wrong)} differ"
            row.record(not problem, f"trial {number}, {kind}: {len(won)} won; {problem}")
    return [row]


def together(folder: Path, signs: Path, number: int) -> list[str]:
    """Resume when all are ready; the one that may trains until the others have been refused."""
    (signs / f"ready-{number}").touch()
    _wait(signs, "ready-*", PROCESSES)
    try:
        trainer, saver, notes = resume(folder)
    except BaseException:
        (signs / f"refused-{number}").touch()
        raise
    trainer.watchers = (Slow(signs),)
    trainer.train(saver)
    return notes


class Slow:
    """Makes a run last until the other processes have had their answer."""

    def __init__(self, signs: Path) -> None:
        self.signs = signs

    def step(self, trainer: Trainer) -> None:
        """Wait for the others."""
        _wait(self.signs, "refused-*", PROCESSES - 1)

    def row(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Nothing."""


def _wait(signs: Path, pattern: str, count: int) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while len(list(signs.glob(pattern))) < count and time.monotonic() < until:
        time.sleep(0.005)
