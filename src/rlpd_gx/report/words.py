"""Counts of a run in words, the same on the terminal and on the page: what was not counted is not shown as none."""

from collections.abc import Sequence

from rlpd_gx.report.charts import number
from rlpd_gx.report.records import Run, is_number
from rlpd_gx.trees import Json, JsonMapping

TRAINING, EVALUATION = "training", "last evaluation"
COUNTS = {
    "steps": "Environment steps",
    "unsafe_events": "Unsafe events",
    "corrections": "Corrections",
    "forbidden_proposals": "Forbidden actions proposed",
    "forbidden_executed": "Forbidden actions executed",
    "inevitable": "inevitable: no action was allowed",
    "near_misses": "Near misses proposed",
    "fallback": "Fallbacks",
    "stopped": "Stopped: nothing could be executed",
}


def count(run: Run, counts: JsonMapping, key: str) -> str:
    """A count in words."""
    if key == "unsafe_events" and not run.watches_unsafe_events:
        return "not watched"
    if key in ("corrections", "fallback", "stopped") and not run.corrects:
        return "no guard" if run.guard in ("none", "no rules") else "corrects nothing"
    if key not in ("steps", "unsafe_events") and run.guard == "no rules":
        return "no rules"
    value = counts.get(key)
    return number(value) if is_number(value) else "–"


def unsafe_episodes(run: Run) -> str:
    """How many training episodes had an unsafe event, and of how many."""
    if not run.watches_unsafe_events:
        return "not watched"
    episodes = run.of("episode")
    return f"{number(sum(bool(row.get('unsafe_events')) for row in episodes))} of {number(len(episodes))}"


def phases(run: Run) -> dict[str, Json]:
    """The counts of training and of the last evaluation, as far as they are known."""
    found = {TRAINING: run.result.get("training"), EVALUATION: run.last_evaluation}
    return {name: counts for name, counts in found.items() if isinstance(counts, dict) and counts}


Row = list[str]
"""Its label, and a cell for each column."""


def results(run: Run) -> list[Row]:
    """A table of one run: heads, then one row for each measurement."""
    columns = phases(run)
    rows = [["", *columns]]
    rows.append(["Mean return", *map(_mean, columns.values())])
    for key, label in COUNTS.items():
        rows.append([label, *(count(run, counts, key) for counts in columns.values())])
    rows.append(["Unsafe episodes", *(unsafe_episodes(run) if name == TRAINING else "" for name in columns)])
    return rows


def comparison(runs: Sequence[Run]) -> dict[str, list[Row]]:
    """Tables of several runs, one column for each run: training, and the last evaluation."""
    tables: dict[str, list[Row]] = {}
    for name in (EVALUATION, TRAINING):
        counts = [phases(run).get(name, {}) for run in runs]
        rows = [["Mean return", *map(_mean, counts)]] if name == EVALUATION else []
        for key, label in COUNTS.items():
            rows.append([label, *(count(run, c, key) for run, c in zip(runs, counts, strict=True))])
        if name == TRAINING:
            rows.append(["Unsafe episodes", *map(unsafe_episodes, runs)])
        tables[name] = rows
    return tables


def names(runs: Sequence[Run]) -> list[str]:
    """What runs that are compared are called: by their guards, or by their folders where guards do not differ."""
    guards = ["no guard" if run.guard == "none" else run.guard for run in runs]
    return guards if len(set(guards)) == len(guards) else [run.folder.name for run in runs]


def results_text(run: Run) -> str:
    """The table of one run for the terminal."""
    return "\n".join([f"{run.title}, guard: {run.guard}", *_aligned(results(run))])


def comparison_text(runs: Sequence[Run]) -> str:
    """The tables of several runs for the terminal."""
    rows: list[Row] = []
    for name, table in comparison(runs).items():
        rows += [[name.capitalize(), *names(runs)], *([f"  {label}", *cells] for label, *cells in table)]
    return "\n".join([runs[0].title, *_aligned(rows)])


def _aligned(rows: Sequence[Row]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([label.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip()
        for label, *cells in rows
    ]


def _mean(counts: JsonMapping) -> str:
    mean = counts.get("mean")
    if is_number(mean) and counts.get("steps") == 0:
        return "none"
    return number(round(mean, 2)) if is_number(mean) else ""
