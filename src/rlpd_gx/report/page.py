"""`report.html` of a run: one self-contained file."""

import os
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from rlpd_gx.files import write_bytes
from rlpd_gx.report.charts import Series, binned, chart, legend, number, running_mean, thinned
from rlpd_gx.report.records import Run, is_number, read_run
from rlpd_gx.report.words import count, phases, results, unsafe_episodes
from rlpd_gx.trees import JsonMapping

WINDOW = 20  # episodes in the running mean of returns
_RATES = {  # column -> name and kind of line; corrections usually coincide with forbidden proposals, so they are dashed
    "near_misses_rate": ("near misses", "line"),
    "forbidden_proposals_rate": ("forbidden proposals", "line"),
    "corrections_rate": ("corrections", "dashed"),
}
_LEARNING = {  # the columns shown first, and their titles
    "critic_loss": "Critic loss",
    "actor_loss": "Actor loss",
    "q_mean": "Mean Q of the batch",
    "td_error": "TD error",
    "entropy": "Entropy of the policy",
    "alpha": "Temperature alpha",
    "online_ratio": "Online fraction (DSS)",
    "interval": "Interval in steps (DTS)",
}


def write_report(run_folder: str | os.PathLike[str]) -> Path:
    """Write `report.html` into a run folder from the files there, and return its path."""
    run = read_run(Path(run_folder))
    target = run.folder / "report.html"
    write_bytes(target, page(run).encode())
    return target


def page(run: Run) -> str:
    """The whole page."""
    known = run.config | run.result
    about = [f"{name} {known[name]}" for name in ("preset", "guard", "seed") if name in known]
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in run.notes)
    parts = [
        notes,
        _headline(run),
        section("Return", _returns(run)),
        section("Guard", _guard(run)),
        section("Learning", _learning(run)),
        section("Audit", _audit(run)),
        section("Run again", _again(run)),
    ]
    return document(str(known.get("env") or run.folder.name), " · ".join(about), "\n".join(parts))


def document(title: str, about: str, body: str, kind: str = "run report") -> str:
    """A page with its style; `body` is HTML."""
    style = files("rlpd_gx.report").joinpath("style.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} – {kind}</title>
<style>{style}</style>
</head>
<body>
<header>
<p class="eyebrow">RLPD-GX {kind}</p>
<h1>{escape(title)}</h1>
<p class="about">{escape(about)}</p>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def _headline(run: Run) -> str:
    evaluations, training = run.of("evaluation"), run.result.get("training") or {}
    returns = [value for value in run.last_evaluation.get("returns") or [] if is_number(value)]
    steps = run.result.get("steps", run.last_step if run.rows else None)
    unsafe = training.get("unsafe_events", _sum(run.of("episode"), "unsafe_events"))
    corrections = training.get("corrections", _sum(run.of("episode"), "corrections"))
    watched = run.watches_unsafe_events
    executed, inevitable = (
        _sum([training, *evaluations], key) for key in ("forbidden_executed", "inevitable")
    )
    where = "in training and in all evaluations" if training else "in evaluations; training has not ended"
    if run.guard == "no rules":
        executed, where = None, "no rules were given"
    elif executed is None:
        where = "not counted yet"
    elif inevitable:
        where = f"{number(inevitable)} of them inevitable (no action was allowed); {where}"
    seconds = run.result.get("seconds")
    seconds = seconds.get("total") if isinstance(seconds, dict) else seconds
    updates = run.result.get("updates")
    corrected = count(run, {"corrections": corrections}, "corrections")
    tiles = [
        (
            "Return",
            run.last_evaluation.get("mean"),
            f"{len(returns)} evaluation episodes, {number(min(returns))} to {number(max(returns))}"
            if returns
            else "no evaluation yet",
        ),
        ("Forbidden actions executed", executed, where),
        (
            "Unsafe events",
            unsafe if watched else "not watched" if run.result else None,
            f"{unsafe_episodes(run)} training episodes; {_share(unsafe, steps, 'per 1,000 training steps', 1_000)}"
            if watched
            else "the rules' module defines no unsafe_event"
            if run.result
            else "known when the run ends",
        ),
        (
            "Corrections",
            corrected,
            _share(corrections, steps, "% of training steps", 100) if corrected[0].isdigit() else "",
        ),
        ("Environment steps", steps, f"{number(updates)} updates" if is_number(updates) else ""),
        (
            "Time",
            _duration(seconds) if is_number(seconds) else None,
            "on the clock, evaluations included" if is_number(seconds) else "",
        ),
    ]
    return tiles_html([(name, _shown(value), note) for name, value, note in tiles])


def tiles_html(tiles: Iterable[tuple[str, str, str]]) -> str:
    """Large figures: a name, the figure, and a line below it."""
    cells = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}</dd><p>{escape(note)}</p></div>'
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _returns(run: Run) -> str:
    episodes = run.points("episode", "return")
    training = [
        Series("one training episode", thinned(episodes), "dots", 2),
        Series(f"mean of the last {WINDOW}", binned(running_mean(episodes, WINDOW)), "line", 2),
    ]
    return _evaluations(run) + _figure(
        run,
        training,
        "Training return",
        f"Each training episode at the step where it ended, with the mean of the last {WINDOW}.",
        "No training episode has ended yet.",
    )


def _evaluations(run: Run) -> str:
    rows = run.of("evaluation")
    if len(rows) == 1:  # a chart of one step would be empty but for its edge
        returns = sorted(value for value in rows[0].get("returns") or [] if is_number(value))
        text = f"One evaluation, at step {number(rows[0]['step'])}: {', '.join(map(number, returns))}."
        return f"<h3>Evaluation return</h3><p>{escape(text)}</p>"
    dots: tuple[list[float], list[float]] = ([], [])
    for row in rows:
        for value in row.get("returns") or []:
            if is_number(value):
                dots[0].append(float(row["step"]))
                dots[1].append(float(value))
    evaluation = [
        Series("one evaluation episode", thinned(dots), "dots", 1),
        Series("mean of an evaluation", run.points("evaluation", "mean"), "line", 1),
    ]
    return _figure(
        run,
        evaluation,
        "Evaluation return",
        "Whole episodes on a separate environment: a dot for each, and their mean.",
        "There is no evaluation in this run yet.",
    )


def _guard(run: Run) -> str:
    guarded = count(run, {"corrections": 0}, "corrections") == "0"
    rates = [
        Series(name, binned(run.points("train", column)), kind, colour)
        for colour, (column, (name, kind)) in zip((3, 2, 1), _RATES.items(), strict=True)
        if guarded or column != "corrections_rate"
    ]
    events = [
        float(r["step"])
        for r in run.of("episode")
        if is_number(r.get("unsafe_events")) and r["unsafe_events"]
    ]
    marks = Series("episode with an unsafe event", (events, [0.0] * len(events)), "marks", 4)
    timeline = _figure(
        run,
        [*rates, marks],
        "Guard timeline",
        "Fractions of the policy's proposals since the previous row. Forbidden: g = 0. Near miss: allowed, but close "
        f"to the boundary. Training episodes with an unsafe event: {unsafe_episodes(run)}.",
        "No rates were measured: the run has no rules, or has not logged a row yet.",
        percent=True,
    )
    if not phases(run):
        return timeline + "<h3>Counts</h3><p class='empty'>No counts were kept.</p>"
    heads, *rows = results(run)
    return timeline + f"<h3>Counts</h3>{table(heads, rows)}"


def _learning(run: Run) -> str:
    names = {name for row in run.of("train") for name, value in row.items() if is_number(value)}
    names -= {"step", *_RATES}
    first = [name for name in _LEARNING if name in names]
    more = sorted(names - set(first))
    if not names:
        return "<p class='empty'>No row of training metrics was logged yet.</p>"
    size = max(1, -(-len(run.of("train")) // 400))
    caption = "Means over the updates since the previous row" + (
        f"; each point is the mean of {size} rows." if size > 1 else "."
    )
    folded = f"<details><summary>{len(more)} more</summary>{_small(run, more)}</details>" if more else ""
    return f'<p class="caption">{caption}</p>{_small(run, first)}{folded}'


def _small(run: Run, names: Iterable[str]) -> str:
    """Small charts side by side, one for each column of the training rows."""
    figures = [
        f"<figure><h3>{escape(_LEARNING.get(name, _words(name)))}</h3>"
        f"{chart([Series(name, binned(run.points('train', name)))], run.last_step, width=350, height=170)}</figure>"
        for name in names
    ]
    return f'<div class="grid2">{"".join(figures)}</div>'


def _audit(run: Run) -> str:
    audit = run.result.get("audit")
    if not isinstance(audit, dict) or not audit:
        return "<p class='empty'>There is no audit: the run had no guard, or has not ended.</p>"
    return "".join(_nested("", audit))


def _nested(title: str, values: JsonMapping) -> Iterable[str]:
    """A table of the plain values; a table of their own for dicts, side by side where they have one form."""
    plain = [(_words(key), value) for key, value in values.items() if not isinstance(value, dict)]
    if title:
        yield f"<h3>{escape(title)}</h3>"
    if plain:
        yield f'<div class="columns">{table([], plain)}</div>'
    elif not values:
        yield "<p class='empty'>None.</p>"
    parts = {key: value for key, value in values.items() if isinstance(value, dict)}
    if (
        title
        and parts
        and not plain
        and not any(isinstance(v, dict) for p in parts.values() for v in p.values())
    ):
        fields = list(dict.fromkeys(field for part in parts.values() for field in part))
        rows = [(key, *(part.get(field) for field in fields)) for key, part in parts.items()]
        yield table(["", *map(_words, fields)], rows)
        return
    for key, part in parts.items():
        yield from _nested(f"{title} / {_words(key)}" if title else _words(key), part)


def _again(run: Run) -> str:
    config = {key: value for key, value in run.config.items() if key != "command"}
    command = run.config.get("command")
    shown_command = (
        f'<pre class="command"><code>{escape(str(command))}</code></pre>'
        if command
        else "<p class='empty'>The command is not known: config.json does not hold it.</p>"
    )
    settings = (
        f'<div class="columns">{table([], list(config.items()))}</div>'
        if config
        else "<p class='empty'>There is no config.</p>"
    )
    versions = (
        f'<div class="columns">{table([], list(run.versions.items()))}</div>'
        if run.versions
        else "<p class='empty'>The versions are not known.</p>"
    )
    return f"{shown_command}<h3>Settings</h3>{settings}<h3>Versions</h3>{versions}"


def _figure(
    run: Run, series: Sequence[Series], title: str, caption: str, otherwise: str, *, percent: bool = False
) -> str:
    drawn = chart(series, run.last_step, percent=percent)
    if not drawn:
        return f"<figure><h3>{escape(title)}</h3><p class='empty'>{escape(otherwise)}</p></figure>"
    return f"<figure><h3>{escape(title)}</h3>{legend(series)}{drawn}<figcaption>{escape(caption)}</figcaption></figure>"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The first column names the rows; numbers are aligned to the right."""
    names = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    head = f"<thead><tr>{names}</tr></thead>" if heads else ""
    body = "".join(
        f'<tr><th scope="row">{escape(str(name))}</th>'
        + "".join(
            f'<td class="{"number" if is_number(v) else "text"}">{escape(_shown(v))}</td>' for v in values
        )
        + "</tr>"
        for name, *values in rows
    )
    return f"<table>{head}<tbody>{body}</tbody></table>"


def section(title: str, content: str) -> str:
    """A part of the page under its title."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _shown(value: object) -> str:
    if is_number(value):
        return number(value)
    if value is None or value == "" or value == {} or value == []:
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _sum(rows: Iterable[JsonMapping], name: str) -> int | None:
    values = [row[name] for row in rows if is_number(row.get(name))]
    return sum(values) if values else None


def _share(count: object, steps: object, of_what: str, scale: float) -> str:
    if not is_number(count) or not is_number(steps) or not steps:
        return ""
    space = "" if of_what.startswith("%") else " "
    return f"{number(round(scale * count / steps, 3))}{space}{of_what}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{number(round(seconds, 1))} s"
