"""A sweep: a table of runs, brought to its end by an engine, however often it is killed on the way."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from rlpd_gx.errors import GxError
from rlpd_gx.experiments.engines import Engine
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.experiments.progress import Progress
from rlpd_gx.experiments.rows import Table, relabelled, row_of
from rlpd_gx.experiments.worker import Job, is_done
from rlpd_gx.loop.run_folder import Lock
from rlpd_gx.trees import Json

MOST_LOSSES = 5  # of one run's process; then something kills it every time
POLL_SECONDS = 1.0


@dataclass
class Sweep:
    """The runs of one experiment, where their folders are, and the table of their rows."""

    name: str
    plan: Sequence[Planned]
    out: Path
    table: Table

    def known(self) -> dict[str, Json]:
        """The rows of the plan by fingerprint: its own, or those that experiments beside it have of the same runs."""
        return self._found(self.table.rows(), *self.table.beside())

    def _found(self, *tables: dict[str, Json]) -> dict[str, Json]:
        """Rows of the plan with all that is measured in it, from the first of the tables that has them.

        A measurement that comes to mean something else needs another name, or has to be taken out of old rows.
        """
        found: dict[str, Json] = {}
        for rows in tables:
            for planned in self.plan:
                row = rows.get(planned.fingerprint)
                if row is not None and _has_all(row, planned):
                    found.setdefault(planned.fingerprint, relabelled(row, planned, self.name))
        return found

    def left(self) -> list[Job]:
        """The runs without a row, once each, and those that they fork from."""
        rows = self.known()
        jobs: dict[str, Job] = {}
        for planned in self.plan:
            if planned.fingerprint in rows:
                continue
            if planned.fork is not None and not is_done(self.job(planned.fork)):
                jobs.setdefault(planned.fork.fingerprint, self.job(planned.fork))
            jobs.setdefault(planned.fingerprint, self.job(planned))
        return list(jobs.values())

    def job(self, planned: Planned) -> Job:
        """A run with its folder, which the fingerprint is part of: other settings never share one."""
        fork = None if planned.fork is None else self.job(planned.fork).folder
        return Job(planned, self.out / f"{planned.name}-{planned.fingerprint[:8]}", fork)

    def adopt(self) -> None:
        """Write the rows that only experiments beside it have."""
        own = self._found(self.table.rows())
        for fingerprint, row in self.known().items():
            if fingerprint not in own:
                self.table.add(row)

    def finished(self, job: Job) -> None:
        """Write the row of a run."""
        self.table.add(row_of(job.planned, job.folder, self.name))


@dataclass(frozen=True)
class Waiting:
    """A run that has not been started, for every sweep that wants its row: trained once, measured for all."""

    wanted: list[tuple[Sweep, Job]]

    @property
    def job(self) -> Job:
        """The run, with all that is measured on it."""
        job = self.wanted[0][1]
        measure = dict.fromkeys(name for _, other in self.wanted for name in other.planned.measure)
        return replace(job, planned=replace(job.planned, measure=tuple(measure)))

    @property
    def is_ready(self) -> bool:
        """Whether the run that it forks from is complete."""
        sweep, job = self.wanted[0]
        return job.planned.fork is None or is_done(sweep.job(job.planned.fork))

    def finished(self) -> None:
        """Write the rows."""
        for sweep, job in self.wanted:
            sweep.finished(job)


def run(sweeps: Sequence[Sweep], engine: Engine, stream: TextIO = sys.stderr) -> list[str]:
    """Bring every run of every sweep to its end; returns a sentence for each that failed.

    A run is started where its row is missing; a folder that is complete only gets its row. So a sweep that was killed
    continues, counts no run twice and loses none.
    """
    locks = [_lock(sweep.out) for sweep in sweeps]
    for sweep in sweeps:
        sweep.adopt()
    waiting = _waiting(sweeps)
    running: dict[Path, Waiting] = {}
    losses: dict[Path, int] = {}
    failed: list[str] = []
    known = len({sweep.job(planned).folder for sweep in sweeps for planned in sweep.plan}) - len(waiting)
    print(f"{len(waiting)} runs to do, {max(known, 0)} have rows", file=stream)
    with Progress(stream, len(waiting)) as progress, closing(engine):
        while waiting or running:
            for one in [one for one in waiting if is_done(one.job)]:
                waiting.remove(one)
                one.finished()
                progress.ended(one.job)
            ready = [one for one in waiting if one.is_ready]
            if waiting and not ready and not running:
                failed += [f"{one.job.folder}: the run that it forks from failed" for one in waiting]
                break
            for one in ready[: engine.slots - len(running)]:
                waiting.remove(one)
                running[one.job.folder] = one
                engine.submit(one.job)
                progress.started(one.job, engine.slots)
            for outcome in engine.wait(POLL_SECONDS):
                one = running.pop(outcome.job.folder)
                if not outcome.error:
                    one.finished()
                    progress.ended(one.job)
                    continue
                losses[one.job.folder] = losses.get(one.job.folder, 0) + 1
                again = outcome.interrupted and losses[one.job.folder] <= MOST_LOSSES
                progress.failed(one.job, outcome.error, again=again)
                if again:
                    waiting.insert(0, one)
                else:
                    failed.append(f"{one.job.folder}: {outcome.error}")
            progress.tick()
    del locks
    return failed


def _has_all(row: Json, planned: Planned) -> bool:
    """Whether a row has all measurements of the plan, of as many episodes and states."""
    as_much = not planned.measure or row.get("measuring", planned.measuring) == planned.measuring
    return as_much and set(planned.measure) <= set(row["measured"])


def _waiting(sweeps: Sequence[Sweep]) -> list[Waiting]:
    wanted: dict[Path, list[tuple[Sweep, Job]]] = {}
    for sweep in sweeps:
        for job in sweep.left():
            wanted.setdefault(job.folder, []).append((sweep, job))
    return [Waiting(of_one) for of_one in wanted.values()]


def _lock(out: Path) -> Lock:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GxError(f"--out {out}: cannot be made: {error.strerror}") from None
    return Lock.take(out)
