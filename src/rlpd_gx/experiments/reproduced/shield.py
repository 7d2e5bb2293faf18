"""Appendix "Guarded backups over execution-only shielding": does SAC+Shield collapse, and does Guardian not?"""

from functools import partial

from rlpd_gx.experiments import showing
from rlpd_gx.experiments.evidence import (
    GAMES_FOR_A_CLAIM,
    SEEDS_FOR_A_CLAIM,
    Points,
    Rows,
    Value,
    better,
    evaluation_curve,
    judged,
    late,
    lower,
    measured,
    of_enough_games,
    paired,
    ratio,
    score,
    training_curve,
)
from rlpd_gx.experiments.experiment import RANDOM, Experiment, Findings, Request, Variant, atari_runs
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.metrics.values import collapse
from rlpd_gx.trees import Json

GAMES = ("Freeway", "Breakout", "Qbert", "Seaquest", "BankHeist", "Frostbite")
GUARDIAN, SHIELD = "RLPD-GX", "SAC+Shield"
VARIANTS = (
    Variant(GUARDIAN),
    Variant(SHIELD, "no-guarded-backup"),  # the settings of --guard shield: the runs are those of `ablation`
    RANDOM,
)
NAMES = [variant.name for variant in VARIANTS]
MEASURE = ("values", "optimism", "ttfv")
SAFE_STEPS = measured("ttfv", "ttfv_restricted_mean_with_guard")


def fall(row: Json) -> float | None:
    """The largest fall below an earlier peak, as a share of that peak."""
    heights = [height for _, height in evaluation_curve(row)]
    return collapse(heights)["collapse_share"] if heights else None


def plan(request: Request) -> list[Planned]:
    """The same shield at execution, with and without a guarded backup."""
    steps = 100_000 if request.scale.name == "paper" else 50_000
    return atari_runs(request, request.choose(GAMES), VARIANTS, steps, measure=MEASURE)


def show(rows: Rows) -> Findings:
    """Score, collapse, TD error, Q variance and time to the first unsafe event."""
    ours, theirs = GUARDIAN, SHIELD
    td_error, q_variance = late("probe_td_error_scaled"), late("probe_q_variance_scaled")
    above, below = (partial(how, least_games=GAMES_FOR_A_CLAIM) for how in (better, lower))

    def both(value: Value) -> tuple[Points, Points]:
        return rows.points(ours, value), rows.points(theirs, value)

    verdicts = [
        above("RLPD-GX ends with a higher score than SAC+Shield", *both(score)),
        above("SAC+Shield collapses: its score falls further below its peak", *both(fall)[::-1]),
        below("RLPD-GX has a lower TD error", *both(td_error)),
        below("RLPD-GX has a lower Q-ensemble variance", *both(q_variance)),
        of_enough_games(
            judged(
                "SAC+Shield is nearly as safe: at least 0.8 of the steps to the first unsafe event",
                ratio(*both(SAFE_STEPS)[::-1]),
                0.8,
                "ratio",
            ),
            sum(min(map(len, seeds)) >= SEEDS_FOR_A_CLAIM for seeds in paired(*both(SAFE_STEPS))),
            GAMES_FOR_A_CLAIM,
        ),
    ]
    values = {
        "proposals corrected": lambda row: row["training"]["corrections"] / row["training"]["steps"],
        "TD error (scaled), last quarter": td_error,
        "Q variance (scaled), last quarter": q_variance,
        "Q above the return that followed": measured("optimism", "optimism"),
        "largest fall below an earlier score": fall,
        "steps to the first unsafe event": SAFE_STEPS,
    }
    tables = [
        showing.score_table(rows, NAMES),
        showing.value_table(f"Stability and safety{showing.horizon(rows)}", rows, NAMES, values),
        showing.safety_table(rows, NAMES),
    ]
    figures = []
    for game in rows.games:
        here = rows.of(game=game)
        figures += [
            showing.curve(here, NAMES, evaluation_curve, f"Score in {game}"),
            showing.curve(here, NAMES[:2], training_curve("probe_td_error_scaled"), f"TD error in {game}"),
            showing.curve(
                here, NAMES[:2], training_curve("probe_q_variance_scaled"), f"Q-ensemble variance in {game}"
            ),
        ]
    return Findings(verdicts, tables, figures)


EXPERIMENT = Experiment(
    "shield",
    "Guarded backup or execution-only shield",
    "The paper reports that SAC with a shield at execution collapses while it stays safe, and that a guarded backup "
    "prevents it. It gives curves without numbers.",
    plan,
    show,
)
