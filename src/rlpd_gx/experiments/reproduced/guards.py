"""Figure "Efficacy of the Guardian mechanism" (Seaquest): TD error, Q variance, margin scan, TTFV."""

import numpy as np

from rlpd_gx.experiments import showing
from rlpd_gx.experiments.evidence import (
    ASKED_LATER,
    SEEDS_FOR_A_CLAIM,
    Interval,
    Rows,
    against_each,
    better,
    judged,
    late,
    lower,
    mean_height,
    measured,
    measured_curve,
    ratio,
    score,
    training_curve,
)  # fmt: skip
from rlpd_gx.experiments.experiment import DRAWN, RANDOM, Experiment, Findings, Request, Variant, atari_runs
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.report.chapter import Figure
from rlpd_gx.report.charts import COLOURS, Series
from rlpd_gx.trees import Json

GUARDIAN = "RLPD-GX"
MASK = "execution mask only"
OTHERS = {
    "no guard": "none",
    MASK: "mask",
    "CMDP-Lagrangian": "lagrangian",
    "classifier shield": "classifier",
}
LEARNED = ("CMDP-Lagrangian", "classifier shield")
VARIANTS = (
    Variant(GUARDIAN),
    *(Variant(name, values={"guard": guard}) for name, guard in OTHERS.items()),
    DRAWN,
    RANDOM,
)
NAMES = [variant.name for variant in VARIANTS]
SURVIVAL = f"{__name__}:survival"
MEASURE = ("values", "margin-scan", "ttfv", "dependence", SURVIVAL)
TTFV = measured("ttfv", "ttfv_restricted_mean_with_guard")
PAPER_RATIO = 9634 / 4156
MARGINS = measured_curve("margin-scan", "delta", "allowed_share")


def plan(request: Request) -> list[Planned]:
    """Five guards, another way to execute and a random policy in Seaquest, 100,000 steps each."""
    games = ("Freeway",) if request.scale.name == "smoke" else ("Seaquest",)
    return atari_runs(request, request.choose(games), VARIANTS, 100_000, measure=MEASURE)


def median_time(row: Json) -> float | None:
    """Median steps to the first unsafe event under the guard; where half had none, how long they were followed."""
    found = row["measured"].get("ttfv")
    if not isinstance(found, dict):
        return None
    reached = found["ttfv_median_with_guard"]
    return found["ttfv_followed_with_guard"] if reached is None else reached


def survival(subject: object) -> Json:
    """Kaplan-Meier curves from critical states, with the guard and without it: a measurement of a run."""
    from rlpd_gx.metrics.survival import kaplan_meier

    found: Json = {}
    for name, guarded in (("with_guard", True), ("without_guard", False)):
        times = subject.first_events(guarded=guarded)  # type: ignore[attr-defined]
        curve = kaplan_meier(*times)
        found[name] = np.round([[float(t), float(s)] for t, s in zip(*curve, strict=True)], 4).tolist()
    return found


def survival_figure(rows: Rows) -> Figure:
    """Kaplan-Meier curves of the first seed of each guard."""
    series = []
    for colour, name in enumerate(NAMES):
        for row in rows.of(variant=name).rows[:1]:
            found = row["measured"].get(SURVIVAL)
            points = found["with_guard"] if isinstance(found, dict) else []
            series.append(
                Series(
                    f"{name}, seed {row['seed']}",
                    ([t for t, _ in points], [s for _, s in points]),
                    "steps",
                    colour % COLOURS + 1,
                )
            )
    return Figure(
        "Time to the first unsafe event (Kaplan-Meier)",
        "Share of replays from critical states, under the guard, without an unsafe event so far; first seed of each.",
        series, x_label="steps from a critical state", percent=True,
    )  # fmt: skip


def show(rows: Rows) -> Findings:
    """Stability while training, safety after it."""
    td_error, q_variance, margins = (
        late("probe_td_error_scaled"),
        late("probe_q_variance_scaled"),
        mean_height(MARGINS),
    )
    times = {name: rows.points(name, TTFV) for name in NAMES}
    learned = max(
        LEARNED, key=lambda name: np.mean([float(np.mean(t)) for t in times[name].values()] or [-np.inf])
    )
    # which learned guard is the best is known once all have been measured
    seeds = [min(map(len, times[name].values()), default=0) for name in LEARNED]
    longer = ratio(times[GUARDIAN], times[learned]) if min(seeds) >= SEEDS_FOR_A_CLAIM else Interval(np.nan)
    verdicts = [
        against_each("Guardian has the lowest TD error", rows, GUARDIAN, OTHERS, td_error, lower),
        against_each("Guardian has the lowest Q-ensemble variance", rows, GUARDIAN, OTHERS, q_variance, lower),
        against_each(
            "Guardian's own actions stay allowed most often under margin scanning",
            rows, GUARDIAN, OTHERS, margins, better,
        ),
        judged(
            "Guardian more than doubles the time to the first unsafe event of the best learned guard "
            f"(the paper, which says violation: {PAPER_RATIO:.2f} times)",
            longer, 2.0, f"ratio to {learned}",
        ),
    ]  # fmt: skip
    drawn = rows.points(DRAWN.name, score)
    verdicts += [
        judged(
            f"{ASKED_LATER}: Guardian's time to the first unsafe event is longer than that of a "
            "random policy under the same guard",
            ratio(times[GUARDIAN], times[RANDOM.name]), 1.0, "ratio",
        ),
        better(
            "Our own: drawing from the safe set scores higher than moving proposals into it",
            drawn,
            rows.points(GUARDIAN, score),
        ),
        better(
            "Our own: where proposals are drawn, a guarded backup scores higher",
            drawn,
            rows.points(MASK, score),
        ),
    ]  # fmt: skip
    values = {
        "TD error (scaled), last quarter": td_error,
        "Q variance (scaled), last quarter": q_variance,
        "margin scan, mean share": margins,
        "steps to the first unsafe event, with guard: mean": TTFV,
        "median": median_time,
        "without guard: mean": measured("ttfv", "ttfv_restricted_mean_without_guard"),
    }
    tables = [
        showing.value_table(f"Measurements{showing.horizon(rows)}", rows, NAMES, values),
        showing.score_table(rows, NAMES, "guards"),
        showing.safety_table(rows, NAMES),
    ]
    figures = [
        showing.curve(rows, NAMES[:-1], training_curve("probe_td_error_scaled"), "TD error"),
        showing.curve(rows, NAMES[:-1], training_curve("probe_q_variance_scaled"), "Q-ensemble variance"),
        showing.curve(
            rows, NAMES, MARGINS, "Margin scan",
            "Share of critical states where the policy's own action stays allowed.",
            x_label="rule thresholds moved inwards by", percent=True,
        ),
        survival_figure(rows),
    ]  # fmt: skip
    return Findings(verdicts, tables, figures)


EXPERIMENT = Experiment(
    "guards",
    "Efficacy of the Guardian",
    "The paper compares five guards in Seaquest. Medians of its time to the first violation: Guardian 9,634 steps, "
    "classifier shield 4,156; it gives no other numbers.",
    plan,
    show,
)
