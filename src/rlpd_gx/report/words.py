"""Counts of a run in words, the same on the terminal and on the page: what was not counted is not shown as none."""

from collections.abc import Sequence

from rlpd_gx.report.charts import number
from rlpd_gx.report.records import Run, is_number
from rlpd_gx.trees import Json, JsonMapping

COUNTS = {
    "steps": "Environment steps",
    "forbidden_proposals": "Forbidden actions proposed",
    "near_misses": "Near misses proposed",
    "corrections": "Corrections",
    "forbidden_executed": "Forbidden actions executed",
    "inevitable": "inevitable: no action was allowed",
    "fallback": "Fallbacks",
    "unsafe_events": "Unsafe events",
}


def count(run: Run, counts: JsonMapping, key: str) -> str:
    """A count in words."""
    if key == "unsafe_events" and not run.watches_unsafe_events:
        return "not watched"
    if key in ("corrections", "fallback") and run.guard in ("none", "no rules"):
        return "no guard"
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
    found = {"training": run.result.get("training"), "last evaluation": run.last_evaluation}
    return {name: counts for name, counts in found.items() if isinstance(counts, dict) and counts}


def results(runs: Sequence[Run]) -> list[list[str]]:
    """A table of runs: heads, then one row for each measurement."""
    columns = [(run, name, counts) for run in runs for name, counts in phases(run).items()]
    rows = [["", *(name if len(runs) == 1 else f"{run.guard}, {name}" for run, name, _ in columns)]]
    means = [counts.get("mean") for _, _, counts in columns]
    rows.append(["Mean return", *(number(round(mean, 2)) if is_number(mean) else "" for mean in means)])
    for key, label in COUNTS.items():
        rows.append([label, *(count(run, counts, key) for run, _, counts in columns)])
    rows.append(["Unsafe episodes", *(unsafe_episodes(r) if n == "training" else "" for r, n, _ in columns)])
    return rows


def results_text(runs: Sequence[Run]) -> str:
    """The table for the terminal; each run has its own, so that none is wider than 80 columns."""
    blocks = []
    for run in runs:
        rows = results([run])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([label.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip()
            for label, *cells in rows
        ]
        blocks.append("\n".join([f"{run.title}, guard: {run.guard}", *lines]))
    return "\n\n".join(blocks)
