"""`comparison.html`: runs beside each other, with their curves in the same charts."""

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rlpd_gx.files import write_bytes
from rlpd_gx.report.charts import Series, binned, chart, legend, running_mean
from rlpd_gx.report.page import WINDOW, document, section, table
from rlpd_gx.report.records import Points, Run, is_number, read_run
from rlpd_gx.report.words import results


def write_comparison(folders: Sequence[Path]) -> Path:
    """Write `comparison.html` into the first folder; it links the report of each run."""
    runs = [read_run(folder) for folder in folders]
    target = folders[0] / "comparison.html"
    heads, *rows = results(runs)
    links = "".join(
        f'<li><a href="{escape(os.path.relpath(run.folder / "report.html", folders[0]), quote=True)}">'
        f"{escape(run.guard)}: {escape(run.folder.name)}</a></li>"
        for run in runs
    )
    parts = [f"<ul>{links}</ul>", section("Results", table(heads, rows)), section("Curves", _curves(runs))]
    about = f"{' and '.join(run.guard for run in runs)}, same budget, same seed"
    write_bytes(target, document(runs[0].title, about, "\n".join(parts)).encode())
    return target


def _curves(runs: Sequence[Run]) -> str:
    figures = {
        "Evaluation return": [run.points("evaluation", "mean") for run in runs],
        f"Training return, mean of {WINDOW} episodes": [
            binned(running_mean(run.points("episode", "return"), WINDOW)) for run in runs
        ],
        "Forbidden proposals": [binned(run.points("train", "forbidden_proposals_rate")) for run in runs],
    }
    if all(run.watches_unsafe_events for run in runs):
        figures["Unsafe episodes so far"] = [_unsafe_so_far(run) for run in runs]
    last = max(run.last_step for run in runs)
    drawn = ""
    for title, curves in figures.items():
        names = [f"{run.guard}" for run in runs]
        series = [
            Series(n, points, "line", i) for i, (n, points) in enumerate(zip(names, curves, strict=True), 1)
        ]
        picture = chart(series, last, percent=title == "Forbidden proposals")
        if picture:
            drawn += f"<figure><h3>{escape(title)}</h3>{legend(series)}{picture}</figure>"
    return drawn


def _unsafe_so_far(run: Run) -> Points:
    steps, total = [0.0], [0.0]
    for row in run.of("episode"):
        unsafe = row.get("unsafe_events")
        steps.append(float(row["step"]))
        total.append(total[-1] + (is_number(unsafe) and unsafe > 0))
    return binned((steps, total))
