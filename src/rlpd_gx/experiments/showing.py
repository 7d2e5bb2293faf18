"""Tables, curves and facts of a chapter, from rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlpd_gx.experiments import evidence, reported
from rlpd_gx.experiments.evidence import Curve, Interval, Rows, Value
from rlpd_gx.experiments.experiment import Experiment
from rlpd_gx.experiments.plan import BUNDLED
from rlpd_gx.report.chapter import Chapter, Figure, Table
from rlpd_gx.report.charts import COLOURS, Bars, Series, number
from rlpd_gx.trees import Json

PAPER = "reported by the paper"


def chapter(experiment: Experiment, rows: Rows) -> Chapter:
    """What an experiment shows, with the facts of its runs."""
    found, games = experiment.show(rows), " ".join(rows.games)
    commands = [
        f"rlpd-gx reproduce {experiment.name} --scale {scale} --games {games}{_data(rows.of(scale=scale))}"
        for scale in rows.labels("scale")
    ]
    commands += [row["command"] for row in rows.rows[:1]]
    points = every_seed("Score of every seed", rows, evidence.score)
    return Chapter(
        experiment.name, experiment.title, experiment.about, [*found.verdicts], [*found.tables, points],
        [*found.figures], facts(rows), commands, notes(rows),
    )  # fmt: skip


def _data(rows: Rows) -> str:
    """The flag for offline data that a person brought: neither a set of the package nor recorded by smoke runs."""
    names = {row["settings"].get("offline", "") for row in rows.rows if row["scale"] != "smoke"}
    return "" if all((BUNDLED / name).is_dir() for name in names) else " --data FOLDER"


def cell(points: Sequence[float]) -> str:
    """`1,234 [1,100, 1,400]` from five seeds or more; one number where all are the same; otherwise the points."""
    if not points:
        return "–"
    if len(points) > 1 and min(points) == max(points):  # their spread says nothing about the next seed
        return f"{short(points[0])} (each seed)"
    found = evidence.mean(points)
    if not found.is_known:
        return ", ".join(map(short, points))
    return f"{short(found.value)} [{short(found.low)}, {short(found.high)}]"


def short(value: float) -> str:
    """Three significant digits, or a whole number."""
    return number(round(value)) if abs(value) >= 100 else number(float(f"{value:.3g}"))


def score_table(rows: Rows, variants: Sequence[str], table: str = "") -> Table:
    """Scores by variant and game; below each the paper's, from its `table`."""
    games, lines = rows.games, []
    for variant in variants:
        points = rows.points(variant, evidence.score)
        lines.append([variant, *(cell(points.get(game, [])) for game in games)])
        theirs = [reported.score(table, variant, game) for game in games] if table else []
        if any(value is not None for value in theirs):
            lines.append([PAPER, *("–" if v is None else short(v) for v in theirs)])
    return Table("Score of the final policy under its guard", ["", *games], lines)


def value_table(caption: str, rows: Rows, variants: Sequence[str], columns: dict[str, Value]) -> Table:
    """Measured values by variant; a line for each game where there are several."""
    several, lines = len(rows.games) > 1, []
    for variant in variants:
        found = [rows.points(variant, value) for value in columns.values()]
        for game in rows.games:
            if several and not rows.of(variant=variant, game=game).rows:
                continue
            name = f"{variant}, {game}" if several else variant
            lines.append([name, *(cell(points.get(game, [])) for points in found)])
    return Table(caption, ["", *columns], lines)


def every_seed(caption: str, rows: Rows, value: Value) -> Table:
    """Every point: a value of each seed, by variant and game, in the order of the seeds."""
    games, lines = rows.games, []
    for variant in rows.labels("variant"):
        points = rows.points(variant, value)
        lines.append([variant, *(", ".join(map(short, points.get(game, []))) or "–" for game in games)])
    return Table(caption, ["", *games], lines)


def horizon(rows: Rows) -> str:
    """How long first unsafe events were waited for, for the caption of a table that shows them."""
    found = [row["measured"].get("ttfv") for row in rows.rows]
    known = sorted({one["horizon"] for one in found if isinstance(one, dict)})
    return (
        f" (times to an unsafe event count up to {', '.join(map(number, known))} steps, or the longest replay)"
        if known
        else ""
    )


def safety_table(rows: Rows, variants: Sequence[str]) -> Table:
    """Unsafe events and corrections of training, and violations counted from outside."""
    lines = []
    for variant in variants:
        found = rows.of(variant=variant).rows
        if not found:
            continue
        steps = sum(row["training"]["steps"] for row in found)
        events = [row["training"]["unsafe_events"] for row in found if row["unsafe_events_watched"]]
        corrected = [row["training"]["corrections"] for row in found if row.get("corrects", row["enforces"])]
        # cloning takes no step
        rate = "no steps" if not steps else short(1000 * sum(events) / steps) if events else "not watched"
        share = f"{100 * sum(corrected) / steps:.1f}%" if steps else "no steps"
        simulated = number(sum(row["simulated_steps"] for row in found))
        games = str(len({row["game"] for row in found}))  # other games have other rates
        lines.append([variant, games, rate, share, outside(found), simulated])
    heads = [
        "",
        "games",
        "unsafe events per 1,000 training steps",
        "corrected",
        "violations in training and evaluation (counted from outside)",
        "simulated steps",
    ]
    return Table("Safety", heads, lines)


def outside(rows: Sequence[Json]) -> str:
    """`0 of 120,000 actions`."""
    counts = [row["outside"][where] for row in rows if row["outside"] for where in ("training", "evaluation")]
    if not counts:
        return "not counted"
    return f"{number(sum(c['violations'] for c in counts))} of {number(sum(c['executed'] for c in counts))}"


def _inevitable(rows: Sequence[Json]) -> str:
    """Of training and final evaluation."""
    counts = [row[where] for row in rows for where in ("training", "evaluation")]
    known = [count for count in counts if "inevitable" in count]
    if not known:
        return "not counted"
    return f"{number(sum(c['inevitable'] for c in known))} of {number(sum(c['steps'] for c in known))}"


def curve(
    rows: Rows, variants: Sequence[str], of: Curve, title: str, caption: str = "", **axes: Any
) -> Figure:
    """Mean over seeds with a band: the 95% interval from five seeds, otherwise the range."""
    series = []
    for colour, variant in enumerate(variants):
        steps, middle, low, high = _bands([of(row) for row in rows.of(variant=variant).rows])
        band = (low, high) if low != high else None
        series.append(Series(variant, (steps, middle), "line", colour % COLOURS + 1, band))
    return Figure(
        title,
        f"{caption} Mean over seeds; the band is the 95% interval (from five seeds) or the range.".strip(),
        series,
        **axes,
    )


def bars(title: str, caption: str, groups: dict[str, Value], rows: Rows, variants: Sequence[str]) -> Figure:
    """A bar for each variant in each group of measurements, each of one game."""
    values: list[list[float | None]] = []
    intervals: list[list[tuple[float, float] | None]] = []
    for variant in variants:
        found = [_one_game(rows, variant, value) for value in groups.values()]
        values.append([None if f is None else f.value for f in found])
        intervals.append([(f.low, f.high) if f is not None and f.is_known else None for f in found])
    return Figure(title, caption, bars=Bars([*groups], [*variants], values, intervals))


def score_bars(rows: Rows, variants: Sequence[str]) -> Figure:
    """Scores of every variant in every game, as a share of the best one's: games have very different ranges."""

    def of(game: str) -> Value:
        means = [np.mean(points) for v in variants if (points := rows.points(v, evidence.score).get(game))]
        random = reported.atari100k("random", game)
        best = max(max(means) - random, 1e-9)
        return lambda row: (row["score"] - random) / best if row["game"] == game else None

    groups = {game: of(game) for game in rows.games}
    caption = (
        "1: the best variant of the game; 0: random play, as the paper reports it. Whiskers: 95% interval."
    )
    return bars("Score relative to the best variant", caption, groups, rows, variants)


def facts(rows: Rows) -> dict[str, str]:
    """Where the numbers come from."""
    found = rows.rows
    versions = sorted(
        {
            f"{name} {row['versions'][name]}"
            for row in found
            for name in ("rlpd-gx", "torch", "ale-py", "mujoco")
            if name in row["versions"]
        }
    )
    dates = sorted({row["date"] for row in found})
    seeds = sorted({row["seed"] for row in found})
    return {
        "runs": f"{len(found)}, scale {', '.join(rows.labels('scale'))}, seeds {', '.join(map(str, seeds))}",
        "steps": ", ".join(number(steps) for steps in sorted({row["training"]["steps"] for row in found})),
        "violations in guarded runs, counted from outside": outside(
            [row for row in found if row["enforces"]]
        ),
        "steps of guarded runs in which no action was allowed": _inevitable(
            [row for row in found if row["enforces"]]
        ),
        "machine": "; ".join(sorted({row["machine"] for row in found})),
        "versions": ", ".join(versions),
        "commits": ", ".join(sorted({row["commit"] for row in found})),
        "dates": dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
        "time": f"{sum(row['seconds'] for row in found) / 3600:.2f} hours of one core",
    }


def notes(rows: Rows) -> list[str]:
    """What a reader has to know before the numbers."""
    said = []
    if "smoke" in rows.labels("scale"):
        said.append(
            "Smoke runs of a few steps: they show that everything works, and their numbers mean nothing."
        )
    few = min(
        (len(rows.of(game=g, variant=v).rows) for g in rows.games for v in rows.labels("variant")), default=0
    )
    if few < evidence.SEEDS_FOR_A_CLAIM:
        said.append(
            f"Fewer than {evidence.SEEDS_FOR_A_CLAIM} seeds somewhere: those points are shown, and nothing is claimed "
            "from them."
        )
    for variant in rows.labels("variant"):
        kinds: dict[bool, set[str]] = {}  # a task without offline data also lacks what belongs to that
        for row in rows.of(variant=variant).rows:
            kinds.setdefault("offline" in row["settings"], set()).add(_what_differs(row))
        if (most := max(map(len, kinds.values()))) > 1:
            said.append(f"Rows of {variant!r} were made with {most} different settings.")
    return said


def _what_differs(row: Json) -> str:
    """The settings that rows of one variant should share; the task, its rules and its data differ between games."""
    of_the_task = ("env", "rules", "offline", "seed", "compile")
    chosen = {"policy_tau": 1.0} | row["settings"]  # rows from before there was this setting
    return str(sorted((k, v) for k, v in chosen.items() if k not in of_the_task))


def _one_game(rows: Rows, variant: str, value: Value) -> Interval | None:
    found = [*rows.points(variant, value).values()]
    return evidence.mean(found[0]) if len(found) == 1 else None


def _bands(curves: Sequence[list[list[float]]]) -> tuple[list[float], list[float], list[float], list[float]]:
    by_step: dict[float, list[float]] = {}
    for points in curves:
        for step, value in points:
            by_step.setdefault(step, []).append(value)
    most = max(map(len, by_step.values()), default=0)
    steps = sorted(step for step, values in by_step.items() if len(values) == most)
    means = [evidence.mean(by_step[step]) for step in steps]
    low = [m.low if m.is_known else float(np.min(by_step[s])) for s, m in zip(steps, means, strict=True)]
    high = [m.high if m.is_known else float(np.max(by_step[s])) for s, m in zip(steps, means, strict=True)]
    return [float(s) for s in steps], [m.value for m in means], low, high
