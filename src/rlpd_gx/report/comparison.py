"""`comparison.html`: runs beside each other, with their curves in the same charts."""

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rlpd_gx.files import write_bytes
from rlpd_gx.report.charts import Series, binned, chart, legend, running_mean
from rlpd_gx.report.page import WINDOW, document, section, table, tiles_html
from rlpd_gx.report.records import Points, Run, read_run
from rlpd_gx.report.words import EVALUATION, TRAINING, comparison, names

FILM = "play.mp4"


def write_comparison(folders: Sequence[Path]) -> Path:
    """Write `comparison.html` into the first folder; it links the report of each run, and shows its `play.mp4`."""
    runs = [read_run(folder) for folder in folders]
    target = folders[0] / "comparison.html"
    tables = "".join(
        f"<h3>{escape(name.capitalize())}</h3>{table(['', *names(runs)], rows)}"
        for name, rows in comparison(runs).items()
    )
    parts = [
        _headline(runs),
        section("Results", tables),
        section("Videos", _films(runs)),
        section("Curves", _curves(runs)),
    ]
    about = ", ".join(f"{name}: {run.folder.name}" for name, run in zip(names(runs), runs, strict=True))
    write_bytes(target, document(runs[0].title, about, "\n".join(parts), "comparison").encode())
    return target


def _headline(runs: Sequence[Run]) -> str:
    tables, order = comparison(runs), " / ".join(names(runs))
    tiles = [("Mean return, last evaluation", EVALUATION, "Mean return")]
    tiles += [(f"{label} in training", TRAINING, label) for label in ("Unsafe events", "Corrections")]
    cells = [
        (name, next(row[1:] for row in tables[phase] if row[0] == label)) for name, phase, label in tiles
    ]
    return tiles_html([(name, " / ".join(values), order) for name, values in cells])


def _films(runs: Sequence[Run]) -> str:
    """The video of each run, where there is one, and the link to its report."""
    figures = ""
    for name, run in zip(names(runs), runs, strict=True):
        film, report = (_link(run, runs[0], file) for file in (FILM, "report.html"))
        video = f'<video controls muted playsinline preload="metadata" src="{film}"></video>'
        shown = video if (run.folder / FILM).is_file() else "<p class='empty'>No video.</p>"
        link = f'<figcaption><a href="{report}">Report of {escape(run.folder.name)}</a></figcaption>'
        figures += f"<figure><h3>{escape(name)}</h3>{shown}{link}</figure>"
    return f'<div class="grid2">{figures}</div>'


def _link(run: Run, first: Run, file: str) -> str:
    return escape(os.path.relpath(run.folder / file, first.folder), quote=True)


def _curves(runs: Sequence[Run]) -> str:
    figures = {
        "Evaluation return": [run.points("evaluation", "mean") for run in runs],
        f"Training return, mean of {WINDOW} episodes": [
            binned(running_mean(run.points("episode", "return"), WINDOW)) for run in runs
        ],
        "Forbidden proposals": [binned(run.points("train", "forbidden_proposals_rate")) for run in runs],
    }
    if all(run.watches_unsafe_events for run in runs):
        figures["Unsafe events so far"] = [_unsafe_so_far(run) for run in runs]
    last = max(run.last_step for run in runs)
    drawn = ""
    for title, curves in figures.items():
        series = [
            Series(name, points, "line", colour)
            for colour, (name, points) in enumerate(zip(names(runs), curves, strict=True), 1)
        ]
        picture = chart(series, last, percent=title == "Forbidden proposals")
        if picture:
            drawn += f"<figure><h3>{escape(title)}</h3>{legend(series)}{picture}</figure>"
    return drawn


def _unsafe_so_far(run: Run) -> Points:
    """Counts up to each row of training, from the rates between rows."""
    steps, total = [0.0], [0.0]
    for step, rate in zip(*run.points("train", "unsafe_events_rate"), strict=True):
        total.append(total[-1] + rate * (step - steps[-1]))
        steps.append(step)
    return binned((steps, total))
