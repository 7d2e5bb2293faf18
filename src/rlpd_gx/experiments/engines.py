"""Where the runs of a sweep run: processes of this machine, or a Ray cluster."""

import multiprocessing
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Protocol

from rlpd_gx.errors import GxError, first_line, missing_extra
from rlpd_gx.experiments import worker
from rlpd_gx.experiments.worker import Job

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # many small runs: one thread each

# seconds of every run otherwise
PRELOADED = (worker.__name__, "torch._dynamo", "scipy.stats", "rlpd_gx.envs.atari")


@dataclass(frozen=True)
class Outcome:
    """A run that is no longer running."""

    job: Job
    error: str = ""
    """Why it failed; empty where it finished."""
    interrupted: bool = False
    """Whether the process was lost: the run can be resumed."""


class Engine(Protocol):
    """Runs jobs side by side."""

    @property
    def slots(self) -> int:
        """How many jobs run at a time."""

    def submit(self, job: Job) -> None:
        """Start a job."""

    def wait(self, seconds: float) -> list[Outcome]:
        """Jobs that ended, after at most this long."""

    def close(self) -> None:
        """Stop what still runs; it saves itself."""


class Processes:
    """A fresh process for each run, one thread each. They are forked from a server that has loaded torch once."""

    def __init__(self, jobs: int) -> None:
        self.slots = jobs
        os.environ.update(ONE_THREAD)  # before the server starts
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload([*PRELOADED])
        self._running: dict[int, tuple[Any, Job]] = {}

    def submit(self, job: Job) -> None:
        """Start a process."""
        process = self._context.Process(target=worker.in_process, args=(job,))
        process.start()
        self._running[process.sentinel] = (process, job)

    def wait(self, seconds: float) -> list[Outcome]:
        """Processes that ended."""
        ended = wait(list(self._running), seconds)
        return [self._outcome(*self._running.pop(sentinel)) for sentinel in ended]  # type: ignore[arg-type]

    def close(self) -> None:
        """Ask every process to save and end, and wait for it."""
        for process, _ in self._running.values():
            process.terminate()
        for process, _ in self._running.values():
            process.join()
        self._running.clear()

    def _outcome(self, process: Any, job: Job) -> Outcome:
        process.join()
        code = process.exitcode
        if code == 0:
            return Outcome(job)
        if code == worker.FAILED or code == 1:
            return Outcome(job, worker.last_words(job.folder))
        return Outcome(job, f"its process ended with code {code}", interrupted=True)


class Ray:
    """Tasks of a Ray cluster; run folders lie on a path that all nodes share.

    A task whose node dies is started again by Ray on another one, and resumes from its checkpoint.
    """

    RETRIES = 20

    def __init__(self, address: str | None = None, jobs: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise missing_extra("Ray", "ray") from None
        self._ray = ray
        if not ray.is_initialized():
            local: dict[str, Any] = {} if address else {"num_cpus": jobs, "include_dashboard": False}
            try:
                ray.init(address, log_to_driver=False, configure_logging=False, **local)
            except (ConnectionError, ValueError) as error:
                raise GxError(f"--address {address}: no Ray cluster answers there: {error}") from None
        self._jobs = jobs
        environment = {"env_vars": {**ONE_THREAD, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}}
        self._task = ray.remote(num_cpus=1, max_retries=self.RETRIES, runtime_env=environment)(_in_ray)
        self._running: dict[Any, Job] = {}

    @property
    def slots(self) -> int:
        """The processors of the cluster, as they are now; `jobs` if given."""
        return self._jobs or max(int(self._ray.cluster_resources().get("CPU", 1)), 1)

    def submit(self, job: Job) -> None:
        """Start a task."""
        self._running[self._task.remote(job, os.getcwd())] = job

    def wait(self, seconds: float) -> list[Outcome]:
        """Tasks that ended."""
        ended, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        outcomes = []
        for reference in ended:
            job = self._running.pop(reference)
            try:
                outcomes.append(Outcome(job, self._ray.get(reference)))
            except self._ray.exceptions.RayTaskError as error:
                outcomes.append(Outcome(job, str(error).splitlines()[-1]))
            except self._ray.exceptions.RayError as lost:
                outcomes.append(Outcome(job, first_line(lost), interrupted=True))
        return outcomes

    def close(self) -> None:
        """Cancel what still runs."""
        for reference in self._running:
            self._ray.cancel(reference)
        self._running.clear()


def _in_ray(job: Job, folder: str) -> str:
    """`work` as a task; returns the sentence of a mistake, or nothing."""
    from rlpd_gx.loop.train import Stopped

    os.chdir(folder)  # relative paths mean the same as for the person who started the sweep
    job.folder.mkdir(parents=True, exist_ok=True)
    try:
        with (
            (job.folder / worker.OUTPUT).open("a") as output,
            redirect_stdout(output),
            redirect_stderr(output),
        ):
            worker.work(job)
    except GxError as error:
        return str(error)
    except Stopped as stop:
        return str(stop)
    return ""
