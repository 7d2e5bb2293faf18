"""What a sweep will cost before it is started: runs, steps, and core-minutes at the speed of finished runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlpd_gx.experiments.plan import Planned
from rlpd_gx.experiments.sweep import Sweep
from rlpd_gx.trees import Json

ALIKE = (("scale", "game", "variant"), ("scale", "variant"), ("scale",))
"""Labels, beside rules and observation, that make a finished run say how fast another will be: the first shared."""


@dataclass(frozen=True)
class Budget:
    """The runs of one experiment that have no row yet."""

    name: str
    planned: int
    runs: int
    """To do; those that an earlier experiment of the plan trains are left out."""
    steps: int
    minutes: float
    """Of one core, without the runs of unknown time."""
    unknown: int
    """Runs to do that no finished run is like."""

    def __str__(self) -> str:
        runs = f"{self.name}: {self.runs} of {self.planned} runs to do, {self.steps:,} steps"
        return f"{runs}, {duration([self])}"


def duration(budgets: Sequence[Budget]) -> str:
    """What is known of the time that these take."""
    unknown, minutes = sum(one.unknown for one in budgets), sum(one.minutes for one in budgets)
    if unknown and unknown == sum(one.runs for one in budgets):
        return "time unknown"
    return f"about {minutes:,.0f} core-minutes" + (f" and {unknown} runs of unknown time" if unknown else "")


def budgets(sweeps: Sequence[Sweep], finished: Sequence[Json]) -> list[Budget]:
    """What each sweep still costs, by the rows of `finished` runs; a run that several sweeps share counts once."""
    known: set[str] = set()
    found = []
    for sweep in sweeps:
        left = [job.planned for job in sweep.left()]
        jobs = [planned for planned in left if planned.fingerprint not in known]
        known |= {planned.fingerprint for planned in jobs}
        times = [_seconds(planned, finished) for planned in jobs]
        minutes = sum(time for time in times if time is not None) / 60
        steps = sum(planned.config.run.steps for planned in jobs)
        # with those forked from
        planned_runs = len({planned.fingerprint for planned in [*sweep.plan, *left]})
        found.append(Budget(sweep.name, planned_runs, len(jobs), steps, minutes, times.count(None)))
    return found


def _seconds(planned: Planned, finished: Iterable[Json]) -> float | None:
    """Of a run, at the mean speed of the finished ones that are most like it."""
    run, trains = planned.config.run, planned.config.run.steps > 0  # else it only clones, or is evaluated
    comparable = [
        row
        for row in finished
        if row["settings"].get("rules", "") == run.rules
        and (row["training"]["steps"] > 0) == trains
        and _observation(row["settings"]["env"]) == _observation(run.env)
    ]
    for labels in ALIKE:
        alike = [
            row
            for row in comparable
            if all(name in row and row[name] == planned.labels.get(name) for name in labels)
        ]
        if alike:
            seconds = sum(row["seconds"] for row in alike)
            steps = sum(row["training"]["steps"] for row in alike)
            return seconds * run.steps / steps if trains else seconds / len(alike)
    return None


def _observation(env: str) -> str:
    """`pixels` of `Atari/Pong-pixels`, which cost far more than `objects`."""
    return env.rpartition("-")[2]
