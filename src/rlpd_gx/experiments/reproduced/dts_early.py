"""Appendix "Early stage": uniform, fixed-k and DTS sampling in the first 20,000 steps."""

from rlpd_gx.experiments import showing
from rlpd_gx.experiments.evidence import Rows, better, late, lower, score, together, training_curve
from rlpd_gx.experiments.experiment import RANDOM, Experiment, Findings, Request, Variant, atari_runs
from rlpd_gx.experiments.plan import Planned

# Assault, the paper's sixth, was used for tuning
GAMES = ("BankHeist", "Frostbite", "Krull", "Boxing", "Pong")
UNIFORM, FIXED, DTS = "uniform", "fixed-k", "DTS"
SAMPLERS = (
    Variant(UNIFORM, values={"sampler": "uniform"}),
    Variant(FIXED, values={"sampler": "fixed", "interval": (1,)}),
    Variant(DTS, values={"sampler": "stride", "interval": (1, 8)}),
)
NAMES = [variant.name for variant in SAMPLERS]


def plan(request: Request) -> list[Planned]:
    """Three samplers under the guard, 20,000 steps."""
    games = ("Boxing",) if request.scale.name == "smoke" else GAMES
    return atari_runs(request, request.choose(games), (*SAMPLERS, RANDOM), 20_000, measure=("proposals",))


def show(rows: Rows) -> Findings:
    """Scores at 20,000 steps, and what the policy proposed on the way."""
    points = {name: rows.points(name, score) for name in NAMES}
    forbidden = {name: rows.points(name, late("forbidden_proposals_rate", last=1.0)) for name in NAMES}
    verdicts = [
        together(
            "DTS scores higher than fixed-k and uniform early on",
            [better(f"against {name}", points[DTS], points[name]) for name in (FIXED, UNIFORM)],
        ),
        better("Fixed-k scores higher than uniform early on", points[FIXED], points[UNIFORM]),
        together(
            "DTS and fixed-k propose fewer forbidden actions than uniform",
            [lower(name, forbidden[name], forbidden[UNIFORM]) for name in (DTS, FIXED)],
        ),
    ]
    figures = []
    for game in rows.games:
        here = rows.of(game=game)
        for name, title in (
            ("forbidden_proposals_rate", "Pre-guard violations"),
            ("near_misses_rate", "Near misses"),
        ):
            figures.append(
                showing.curve(here, NAMES, training_curve(name), f"{title} in {game}", percent=True)
            )
    tables = [
        showing.score_table(rows, [*NAMES, RANDOM.name], "dts_early"),
        showing.safety_table(rows, [*NAMES, RANDOM.name]),
    ]
    return Findings(verdicts, tables, figures)


EXPERIMENT = Experiment(
    "dts-early",
    "DTS in the first 20,000 steps",
    "The paper compares three samplers after 20,000 steps, with rates of forbidden and nearly forbidden proposals.",
    plan,
    show,
)
