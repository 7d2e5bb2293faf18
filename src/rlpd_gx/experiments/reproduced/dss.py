"""Our own: what DSS changes is both how much online data is learned from, and when. Each is varied alone."""

from functools import partial

from rlpd_gx.experiments import showing
from rlpd_gx.experiments.evidence import GAMES_FOR_A_CLAIM, Rows, better, score, together
from rlpd_gx.experiments.experiment import RANDOM, Experiment, Findings, Request, Variant, atari_runs
from rlpd_gx.experiments.plan import Planned

GAMES = ("Freeway", "Breakout", "Qbert", "Seaquest")
# the share of online rows: the mean of a rising one is that of the constant one beside it
LITTLE_RISING, LITTLE_CONSTANT = "RLPD-GX (0.05 to 0.5)", "constant 0.275"
MUCH_RISING, MUCH_CONSTANT = "0.05 to 0.95", "without DSS (constant 0.5)"
VARIANTS = (
    Variant(LITTLE_RISING, "full"),
    Variant(LITTLE_CONSTANT, "full", {"online_ratio": (0.275,)}),
    Variant(MUCH_RISING, "full", {"online_ratio": (0.05, 0.95)}),
    Variant(MUCH_CONSTANT, "no-dss"),
    RANDOM,
)
NAMES = [variant.name for variant in VARIANTS]


def plan(request: Request) -> list[Planned]:
    """Two amounts of online data, each rising or constant; half of the runs are those of the ablation."""
    return atari_runs(request, request.choose(GAMES), VARIANTS, 50_000)


def show(rows: Rows) -> Findings:
    """Scores, and whether order or amount makes them."""
    points = {name: rows.points(name, score) for name in NAMES}
    above = partial(better, least_games=GAMES_FOR_A_CLAIM)
    verdicts = [
        together(
            "With as much online data, a rising share scores higher than a constant one",
            [
                above("with 0.275", points[LITTLE_RISING], points[LITTLE_CONSTANT]),
                above("with 0.5", points[MUCH_RISING], points[MUCH_CONSTANT]),
            ],
        ),
        together(
            "More online data scores higher",
            [
                above("rising", points[MUCH_RISING], points[LITTLE_RISING]),
                above("constant", points[MUCH_CONSTANT], points[LITTLE_CONSTANT]),
            ],
        ),
    ]
    tables = [showing.score_table(rows, NAMES), showing.safety_table(rows, NAMES)]
    return Findings(verdicts, tables, [showing.score_bars(rows, NAMES)])


EXPERIMENT = Experiment(
    "dss",
    "DSS: order or amount of online data",
    "The paper shows DSS as part of its ablation. Its share of online rows rises from 0.05 to 0.5, so less is learned "
    "from online data than with a constant half. Here order and amount are varied apart.",
    plan,
    show,
)
