"""Table "Ablation on six Atari games": what Guardian, guarded backup, DTS and DSS are each worth."""

from functools import partial

from rlpd_gx.experiments import reported, showing
from rlpd_gx.experiments.evidence import (
    ASKED_LATER,
    GAMES_FOR_A_CLAIM,
    Rows,
    better,
    event_rate,
    lower,
    score,
    score_rate,
    together,
)
from rlpd_gx.experiments.experiment import RANDOM, Experiment, Findings, Request, Variant, atari_runs
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.report.chapter import ClaimVerdict, Word

GAMES = ("Freeway", "Breakout", "Qbert", "Seaquest", "BankHeist", "Frostbite")
PAPER_GAMES = ("Amidar", "Breakout", "CrazyClimber", "Freeway", "Jamesbond", "Qbert")
FULL = "RLPD-GX"
PARTS = ("Guardian", "guarded backup", "DTS", "DSS")
NO_GUARDIAN, NO_BACKUP, NO_DTS, NO_DSS = (f"without {part}" for part in PARTS)
VARIANTS = (
    Variant(FULL, "full"),
    Variant(NO_GUARDIAN, "no-guardian"),
    Variant(NO_BACKUP, "no-guarded-backup"),
    Variant(NO_DTS, "no-dts"),
    Variant(NO_DSS, "no-dss"),
    RANDOM,
)
NAMES = [variant.name for variant in VARIANTS]


def plan(request: Request) -> list[Planned]:
    """Five variants and a random policy under the guard."""
    games, steps = (PAPER_GAMES, 100_000) if request.scale.name == "paper" else (GAMES, 50_000)
    return atari_runs(request, request.choose(games), VARIANTS, steps)


def show(rows: Rows) -> Findings:
    """Scores, and whether each part is worth something."""
    points = {name: rows.points(name, score) for name in NAMES}
    above = partial(better, least_games=GAMES_FOR_A_CLAIM)
    verdicts = [
        above(f"{FULL} scores higher with {part} than without", points[FULL], points[f"without {part}"])
        for part in PARTS
    ]
    verdicts += [
        together(
            "Leaving out the Guardian costs more than DTS, and DTS more than DSS",
            [
                above("leaving out the Guardian costs more than DTS", points[NO_DTS], points[NO_GUARDIAN]),
                above("leaving out DTS costs more than DSS", points[NO_DSS], points[NO_DTS]),
            ],
        ),
        order_in_every_game(),
        above(
            f"{FULL} scores higher than a random policy under the same guard",
            points[FULL],
            points[RANDOM.name],
        ),
    ]
    pace, events = (
        [rows.points(name, value) for name in (FULL, RANDOM.name)] for value in (score_rate, event_rate)
    )
    verdicts += [
        above(
            f"{ASKED_LATER}: {FULL} has more points per step than a random policy under the same guard", *pace
        ),
        lower(
            f"{ASKED_LATER}: {FULL} has fewer unsafe events per step than that random policy",
            *events,
            least_games=GAMES_FOR_A_CLAIM,
        ),
    ]
    tables = [
        showing.score_table(rows, NAMES, "ablation"),
        showing.value_table(
            "What a score is made of: how fast points come, and how often something unsafe happens",
            rows,
            NAMES,
            {"points per 1,000 steps": score_rate, "unsafe events per 1,000 steps": event_rate},
        ),
        showing.safety_table(rows, NAMES),
    ]
    return Findings(verdicts, tables, [showing.score_bars(rows, NAMES)])


def order_in_every_game() -> ClaimVerdict:
    """Whether the paper's own table has its order in every game."""
    claim = "Guardian > DTS > DSS in every game of the paper's table"
    table = reported.tables()["ablation"]["games"]
    against = [g for g in PAPER_GAMES if not table[NO_GUARDIAN][g] < table[NO_DTS][g] < table[NO_DSS][g]]
    if against:
        return ClaimVerdict(Word.IMPOSSIBLE, claim, f"its own figures contradict it in {', '.join(against)}")
    return ClaimVerdict(Word.UNDECIDED, claim, "its own figures agree; not tested game by game")


EXPERIMENT = Experiment(
    "ablation",
    "Ablation",
    "The paper removes one component at a time and reports final scores. Ours see objects instead of pixels, and the "
    "rules are RAM rules.",
    plan,
    show,
)
