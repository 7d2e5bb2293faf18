"""What a sweep shows while it runs: a live table on a terminal, plain lines elsewhere."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rlpd_gx.experiments.worker import Job
from rlpd_gx.loop.watchers import duration

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

TAIL_BYTES = 8_192


class Progress:
    """Runs that are going on, how many have ended, and the time left. Use it as a context manager."""

    def __init__(self, stream: TextIO, total: int) -> None:
        self.stream, self.total = stream, total
        self.slots, self.done, self.lost = 1, 0, 0
        self.running: dict[Path, tuple[Job, float]] = {}
        self.seconds: list[float] = []  # of the runs that ended
        self.live: Live | None = None

    def __enter__(self) -> "Progress":
        if self.stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(file=self.stream), auto_refresh=False)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def started(self, job: Job, slots: int) -> None:
        """A run began, or was resumed."""
        self.slots = slots
        self.running[job.folder] = job, time.monotonic()
        trained, begun = ((job.folder / name).exists() for name in ("result.json", "config.json"))
        self._line(f"{job.folder}: {'measured' if trained else 'resumed' if begun else 'started'}")

    def ended(self, job: Job) -> None:
        """A run finished."""
        self.done += 1
        if job.folder not in self.running:
            self._line(f"{job.folder}: is complete; {self.summary()}")
            return
        took = time.monotonic() - self.running.pop(job.folder)[1]
        self.seconds.append(took)
        self._line(f"{job.folder}: done in {duration(took)}; {self.summary()}")

    def failed(self, job: Job, why: str, *, again: bool) -> None:
        """A run failed, or its process was lost."""
        self.running.pop(job.folder)
        self.lost += not again
        self._line(f"{job.folder}: {why}" + ("; it is resumed" if again else ""))

    def tick(self) -> None:
        """Draw the live table."""
        if self.live is not None:
            self.live.update(self._table(), refresh=True)

    def summary(self) -> str:
        """`3 of 40 runs done, 2 running, about 12 min 30 s left`."""
        parts = [f"{self.done} of {self.total} runs done", f"{len(self.running)} running"]
        parts += [f"{self.lost} failed"] if self.lost else []
        if self.seconds:
            mean = sum(self.seconds) / len(self.seconds)
            begun = sum(min(time.monotonic() - start, mean) for _, start in self.running.values())
            left = mean * (self.total - self.done - self.lost) - begun
            parts.append(f"about {duration(left / self.slots)} left")
        return ", ".join(parts)

    def _line(self, text: str) -> None:
        if self.live is not None:
            self.live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self.stream, flush=True)

    def _table(self) -> "Table":
        from rich.table import Table

        table = Table(title=self.summary(), box=None, title_justify="left")
        for head in ("run", "step", "score", "time"):
            table.add_column(head, justify="left" if head == "run" else "right", no_wrap=head != "run")
        for job, start in self.running.values():
            step, score = where(job.folder)
            steps = job.planned.config.run.steps
            shown = "" if score is None else f"{score:.1f}"
            table.add_row(job.folder.name, f"{step:,}/{steps:,}", shown, duration(time.monotonic() - start))
        return table


def where(folder: Path) -> tuple[int, float | None]:
    """Step and score of a run's newest rows, from the end of its metrics."""
    step, score = 0, None
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return step, score
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        step = max(step, row["step"])
        score = row["mean"] if row["kind"] == "evaluation" else score
    return step, score
