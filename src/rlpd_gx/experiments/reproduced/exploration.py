"""Figure "Exploration efficiency comparison" (Seaquest): coverage, entropy, action novelty, support KL."""

from rlpd_gx.experiments import reported, showing
from rlpd_gx.experiments.evidence import (
    ASKED_LATER,
    Rows,
    against_each,
    better,
    judged,
    measured,
    measured_curve,
    ratio,
)
from rlpd_gx.experiments.experiment import DRAWN, RANDOM, Experiment, Findings, Request, Variant, atari_runs
from rlpd_gx.experiments.plan import Planned

GUARDIAN, ONLINE, OFFLINE = "RLPD-GX", "online, no guard", "offline only"
SAFETY = {"execution mask only": "mask", "CMDP-Lagrangian": "lagrangian", "classifier shield": "classifier"}
VARIANTS = (
    Variant(GUARDIAN),
    *(Variant(name, values={"guard": guard}) for name, guard in SAFETY.items()),
    Variant(ONLINE, values={"guard": "online"}),
    Variant(OFFLINE, values={"guard": "offline"}),
    DRAWN,
    RANDOM,
)
NAMES = [variant.name for variant in VARIANTS]
MEASURE = ("exploration", "novelty", "support-kl")
COVERAGE, ENTROPY = measured("exploration", "coverage"), measured("exploration", "visitation_entropy")
NOVELTY, SUPPORT_KL = measured("novelty", "action_novelty_rate"), measured("support-kl", "support_kl")


def plan(request: Request) -> list[Planned]:
    """Seven variants and a random policy in Seaquest; the guards share their runs with `guards`."""
    games = ("Freeway",) if request.scale.name == "smoke" else ("Seaquest",)
    return atari_runs(request, request.choose(games), VARIANTS, 100_000, measure=MEASURE)


def show(rows: Rows) -> Findings:
    """Breadth and uniformity while training; distance from the offline data after it."""
    verdicts = []
    for what, value in (("state coverage", COVERAGE), ("visitation entropy", ENTROPY)):
        claim = f"Guardian has higher {what} than the safety baselines"
        verdicts.append(against_each(claim, rows, GUARDIAN, SAFETY, value, better))
        share = ratio(rows.points(GUARDIAN, value), rows.points(ONLINE, value))
        verdicts.append(
            judged(
                f"Guardian's {what} is at least 0.9 of that without guard and offline data",
                share,
                0.9,
                "ratio",
            )
        )
    for what, value in (("action novelty", NOVELTY), ("support KL", SUPPORT_KL)):
        claim = f"Guardian has the highest {what} of the safe methods"
        verdicts.append(against_each(claim, rows, GUARDIAN, (*SAFETY, OFFLINE), value, better))
        claim = (
            f"{ASKED_LATER}: {what} is higher where proposals are drawn from the safe set, not moved into it"
        )
        verdicts.append(better(claim, rows.points(DRAWN.name, value), rows.points(GUARDIAN, value)))
    paper = reported.tables()["exploration_seaquest"]["RLPD-GX"]
    values = {
        "coverage (codes)": COVERAGE,
        "entropy": ENTROPY,
        f"action novelty (paper: {paper['action_novelty_rate']})": NOVELTY,
        f"support KL (paper: {paper['support_kl']})": SUPPORT_KL,
    }
    tables = [
        showing.value_table("Exploration", rows, NAMES, values),
        showing.score_table(rows, NAMES),
        showing.safety_table(rows, NAMES),
    ]
    figures = [
        showing.curve(rows, NAMES, measured_curve("exploration", "step", "coverage"), "State coverage"),
        showing.curve(rows, NAMES, measured_curve("exploration", "step", "visitation_entropy"), "Visitation entropy"),
        showing.bars(
            "Beyond the offline data", "Of the final policy.",
            {"action novelty": NOVELTY, "support KL": SUPPORT_KL}, rows, NAMES,
        ),
    ]  # fmt: skip
    return Findings(verdicts, tables, figures)


EXPERIMENT = Experiment(
    "exploration",
    "Exploration",
    "The paper reports that Guardian explores nearly as widely as an unguarded agent, and further from the offline "
    "data than other safe methods (action novelty 0.16, support KL 0.50).",
    plan,
    show,
)
