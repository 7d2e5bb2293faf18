"""Who looks on while a run goes: a line in the terminal, and TensorBoard."""

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rlpd_gx.loop.train import Trainer


class ProgressLine:
    """Return, intervention rate, lambda, Delta, steps a second, time left. Use it as a context manager."""

    def __init__(self, console: Console, total: int, done: int = 0) -> None:
        self.bar = Progress(
            TextColumn("{task.fields[phase]} {task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=max(total, 1), completed=done, phase="step", facts="")
        self.evaluation = math.nan

    def __enter__(self) -> "ProgressLine":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def step(self, trainer: Trainer) -> None:
        """Show where the run is."""
        warm = trainer.task.config.run.warm_start_updates
        if trainer.step == 0 and trainer.warm_updates < warm:
            self.bar.update(self.task, phase="warm start", completed=trainer.warm_updates, total=warm)
            return
        total, recent = trainer.window.total, trainer.window.tally
        share = recent.corrections / max(recent.proposals, 1)
        speed = self.bar.tasks[0].speed
        facts = [
            f"return {trainer.last_score:.1f}",
            f"evaluated {self.evaluation:.1f}",
            f"corrections {share:.1%}",
            f"unsafe {total.unsafe_events}",
            f"λ {trainer.dss(trainer.step):.2f}",
            f"Δ {trainer.dts(trainer.step)}",
            f"{speed:.0f} steps/s" if speed else "",
        ]
        self.bar.update(
            self.task,
            phase="step",
            completed=trainer.step,
            total=max(trainer.task.config.run.steps, 1),
            facts="  ".join(fact for fact in facts if fact and "nan" not in fact),
        )

    def row(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Remember the last evaluation."""
        if kind == "evaluation":
            self.evaluation = values["mean"]


class TensorBoard:
    """Every number of every row, under its kind."""

    def __init__(self, folder: Path, step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def step(self, trainer: Trainer) -> None:
        """Nothing between rows."""

    def row(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Write the numbers of a row."""
        for name, value in values.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(f"{kind}/{name}", value, step)
