"""One run of a sweep, in a process of its own: begin it or resume it, train to the end, measure."""

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rlpd_gx.errors import GxError
from rlpd_gx.experiments.outside import Log, counting
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.experiments.rows import MEASURED, finite, measured
from rlpd_gx.files import write_json
from rlpd_gx.loop.fork import fork
from rlpd_gx.loop.resume import Saver, resume
from rlpd_gx.loop.run_folder import Busy, Lock, RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import Stopped, Trainer

OUTPUT, COST = "output.txt", "seconds of processor time"
STOPPED, FAILED = 3, 2  # exit codes: saved and to be resumed; wrong settings or data
# for another process that writes the folder: of a sweep that was killed, or on a lost node
PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class Job:
    """A run and its folder."""

    planned: Planned
    folder: Path
    fork: Path | None = None
    """The folder of the run that it forks from."""


def work(job: Job) -> None:
    """Bring a run to its end from wherever it is. Doing it again changes nothing."""
    job.folder.mkdir(parents=True, exist_ok=True)
    lock = _wait_for_lock(job.folder)
    if not (job.folder / "result.json").exists():
        _train(job)
    _measure(job)
    del lock


def is_done(job: Job) -> bool:
    """Whether nothing is left to do."""
    return (job.folder / "result.json").exists() and set(job.planned.measure) <= set(measured(job.folder))


def in_process(job: Job) -> None:
    """`work` as the main function of a process: output to a file, one sentence for a mistake, an exit code."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is for the sweep, which then asks its runs to save
    _stop_with_parent()
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / OUTPUT).open("a") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
        code = 0
        try:
            work(job)
        except Stopped:
            code = STOPPED
        except GxError as error:
            print(error)
            code = FAILED
        print(f"{time.process_time():.1f} {COST}", flush=True)
    sys.exit(code)


def last_words(folder: Path) -> str:
    """The last line of a run's output: why it failed."""
    path = folder / OUTPUT
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    said = [line for line in lines if line and not line.endswith(COST)]
    return said[-1] if said else "it left no message"


def _train(job: Job) -> None:
    planned = job.planned
    if job.fork is not None and not any(job.folder.glob("checkpoints/*")):
        (job.folder / "config.json").unlink(missing_ok=True)  # killed while it forked
        trainer, save, notes = fork(
            job.fork,
            None,
            job.folder,
            planned.changes,
            words=planned.name,
            command=planned.command,
            counting=counting,
        )
        print(*notes, f"forked at step {trainer.step:,}", sep="\n", flush=True)
    elif (job.folder / "config.json").exists():
        trainer, save, notes = resume(job.folder, counting=counting)
        print(*notes, f"resuming at step {trainer.step:,}", sep="\n", flush=True)
    else:
        task = Task(planned.config, counting)
        folder = RunFolder.create(job.folder, planned.config, planned.command)
        trainer, save = Trainer(task, folder), Saver(folder)
        trainer.begin()
        save(trainer)
    trainer.watchers = (Log(trainer),)
    trainer.train(save)


def _measure(job: Job) -> None:
    """Make the measurements that are missing; those of other experiments with the same run are kept."""
    known = measured(job.folder)
    missing = [name for name in job.planned.measure if name not in known]
    if missing:
        from rlpd_gx.loop.measure import measure_run

        found = measure_run(job.folder, missing, **job.planned.measuring)
        write_json(job.folder / MEASURED, known | finite(found))


def _wait_for_lock(folder: Path) -> Lock:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return Lock.take(folder)
        except Busy:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.5)


def _stop_with_parent() -> None:
    """Save and stop when the process of the sweep is gone, however it ended."""
    import multiprocessing
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
