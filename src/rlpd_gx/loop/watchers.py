"""Callbacks that observe a training run: progress on the terminal or in a log file, TensorBoard and its like."""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO

from rlpd_gx.errors import GxError, missing_extra, refuse_text
from rlpd_gx.loop.train import Trainer, Watcher
from rlpd_gx.settings import flat
from rlpd_gx.trees import Json

if TYPE_CHECKING:
    from rich.progress import Progress as Live

Write = Callable[[Mapping[str, float], int], None]  # named numbers at a step
SERVICES = {"wandb": "Weights & Biases", "trackio": "Trackio"}  # module, which is also the extra -> name
SCALARS = {  # column of a row of metrics -> its name in TensorBoard and elsewhere
    ("evaluation", "mean"): "eval/return",
    ("evaluation", "success_rate"): "eval/success_rate",
    ("evaluation", "forbidden_executed"): "eval/forbidden_executed",
    ("evaluation", "unsafe_events"): "eval/unsafe_events",
    ("episode", "return"): "train/episode_return",
    ("episode", "length"): "train/episode_length",
    ("train", "corrections_rate"): "guard/correction_rate",
    ("train", "forbidden_proposals_rate"): "guard/forbidden_proposal_rate",
    ("train", "near_misses_rate"): "guard/near_miss_rate",
    ("train", "forbidden_executed_rate"): "guard/forbidden_executed_rate",
    ("train", "inevitable_rate"): "guard/inevitable_rate",
    ("train", "fallback_rate"): "guard/fallback_rate",
    ("train", "unsafe_events_rate"): "guard/unsafe_event_rate",
}


class Progress:
    """A live line on a terminal; elsewhere one plain line at each `log_every`. Use it as a context manager."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self.stream, self.quiet = stream, quiet
        self.live: Live | None = None if quiet or not stream.isatty() else _live()
        self.trainer: Trainer | None = None
        self.evaluation = self.correction_rate = math.nan
        self.speed = Speed()

    def __enter__(self) -> "Progress":
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def step(self, trainer: Trainer) -> None:
        """Show where the run is."""
        self.trainer = trainer
        run = trainer.task.config.run
        if trainer.step == 0 and trainer.warm_updates < run.warm_start_updates:
            self._warm_start(trainer.warm_updates, run.warm_start_updates, trainer.task.config.data.updates)
            return
        self.speed.at(trainer.step)
        if self.live is not None:
            text = "  ".join(self.facts(trainer))
            self.live.update(
                self.live.task_ids[0], completed=trainer.step, total=max(run.steps, 1), text=text
            )

    def row(self, kind: str, step: int, values: Json) -> None:
        """Remember the last evaluation; print a line with each row of training."""
        if kind == "evaluation":
            self.evaluation = values["mean"]
        elif kind == "train" and self.trainer is not None:
            rate = values.get("corrections_rate")
            if rate is not None and self.trainer.corrects:
                self.correction_rate = rate
            if step > 0:
                self._print("  ".join(self.facts(self.trainer)))

    def facts(self, trainer: Trainer) -> list[str]:
        """Facts about the run so far; what is not known yet is left out."""
        steps = trainer.task.config.run.steps
        known = {
            "return": trainer.last_score, "evaluated": self.evaluation, "corrections": 100 * self.correction_rate
        }  # fmt: skip
        facts = [f"step {trainer.step:,}/{steps:,}"]
        facts += [
            f"{name} {value:.1f}{'%' if name == 'corrections' else ''}"
            for name, value in known.items()
            if not math.isnan(value)
        ]
        watched = trainer.watches_unsafe_events
        facts.append(f"unsafe events {trainer.window.total.unsafe_events if watched else 'not watched'}")
        if speed := self.speed.steps_per_second:
            facts += [f"{speed:.3g} steps/s", f"{duration((steps - trainer.step) / speed)} left"]
        return facts

    def _warm_start(self, done: int, total: int, block: int) -> None:
        assert self.trainer is not None
        text = f"warm start: {done:,}/{total:,} updates"
        if self.live is not None:
            self.live.update(self.live.task_ids[0], completed=done, total=total, text=text)
        every = self.trainer.task.config.run.log_every
        if done // every > (done - block) // every:
            self._print(text)

    def _print(self, text: str) -> None:
        if self.live is None and not self.quiet:
            print(text, file=self.stream, flush=True)


class Speed:
    """Steps a second since the first step that was seen."""

    def __init__(self) -> None:
        self.first: tuple[int, float] | None = None
        self.last = (0, 0.0)

    def at(self, step: int) -> None:
        """The run is at this step now."""
        self.last = (step, time.perf_counter())
        self.first = self.first or self.last

    @property
    def steps_per_second(self) -> float | None:
        """None before two steps were seen."""
        if self.first is None or self.last[0] <= self.first[0]:
            return None
        return (self.last[0] - self.first[0]) / max(self.last[1] - self.first[1], 1e-9)


class Tracker:
    """Every number of every row of metrics, and the speed, under the names that all sinks share."""

    def __init__(self, write: Write, close: Callable[[], object]) -> None:
        self.write, self.close = write, close
        self.speed = Speed()
        self.trainer: Trainer | None = None

    def step(self, trainer: Trainer) -> None:
        """Only the clock is read between rows."""
        self.trainer = trainer
        self.speed.at(trainer.step)

    def row(self, kind: str, step: int, values: Json) -> None:
        """Write the numbers of a row."""
        watched = self.trainer is not None and self.trainer.watches_unsafe_events
        corrects = self.trainer is not None and self.trainer.corrects
        named = {}
        for name, value in values.items():
            if (name.startswith("unsafe_event") and not watched) or (
                name == "corrections_rate" and not corrects
            ):
                continue
            tag = SCALARS.get((kind, name), f"train/{name}" if kind == "train" else None)
            if tag is not None and isinstance(value, int | float):
                named[tag] = value
        if kind == "train" and (speed := self.speed.steps_per_second):
            named["time/steps_per_second"] = speed
        if named:
            self.write(named, step)


def tensorboard(trainer: Trainer) -> Tracker:
    """Into `tensorboard/` of the run folder, with the settings as hyperparameters."""
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    folder = str(trainer.folder.path / "tensorboard")
    writer = SummaryWriter(folder, purge_step=trainer.step + 1 if trainer.step else None)
    for summary in hparams(_plain_settings(trainer), {"eval/return": 0.0}):
        # in the same file: add_hparams would make a second run
        writer._get_file_writer().add_summary(summary)

    def write(named: Mapping[str, float], step: int) -> None:
        for tag, value in named.items():
            writer.add_scalar(tag, value, step)

    return Tracker(write, writer.close)


def service(name: str, trainer: Trainer) -> Tracker:
    """Weights & Biases or Trackio, which share an interface; their own variables choose project, place and mode."""
    module = import_module(name)
    folder = trainer.folder.path
    project = os.environ.get(f"{name.upper()}_PROJECT", "rlpd-gx")
    options = {"dir": str(folder)} if name == "wandb" else {}
    module.init(project=project, name=folder.name, config=_plain_settings(trainer), **options)
    return Tracker(lambda named, step: module.log(dict(named), step=step), module.finish)


@contextmanager
def trackers(trainer: Trainer, services: Iterable[str] = ()) -> Iterator[tuple[Watcher, ...]]:
    """Where the numbers of a run go beside its own files: TensorBoard, if that is installed, and named services."""
    made = [tensorboard(trainer)] if find_spec("tensorboard") is not None else []
    try:
        for name in services:
            made.append(service(name, trainer))
        yield tuple(made)
    finally:
        for tracker in made:
            tracker.close()


def check_services(names: Iterable[str]) -> None:
    """Raise unless each is known and installed."""
    refuse_text(names, "track")
    for name in names:
        if name not in SERVICES:
            raise GxError(
                f"--track takes {' or '.join(SERVICES)}, not {name!r}; TensorBoard files are written anyway"
            )
        if find_spec(name) is None:
            raise missing_extra(SERVICES[name], name)


def _plain_settings(trainer: Trainer) -> dict[str, bool | int | float | str]:
    values = flat(trainer.task.config).items()
    return {name: v if isinstance(v, bool | int | float | str) else json.dumps(v) for name, v in values}


def duration(seconds: float) -> str:
    """`1 h 02 min`, `3 min 05 s` or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _live() -> "Live":
    from rich.console import Console
    from rich.progress import Progress, TextColumn
    from rich.table import Column

    live = Progress(
        TextColumn("{task.fields[text]}", markup=False, table_column=Column()),  # wraps where it is too long
        console=Console(stderr=True),
        transient=True,
    )
    live.add_task("", total=1, text="")
    return live
